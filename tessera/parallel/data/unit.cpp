#include "tessera/parallel/data/unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tessera::parallel {
namespace {

/// Parameters of one dtype, trained or frozen, shared and updated alike.
struct Kind {
  std::vector<Unit::Named> parameters;
  Replication replication;
  bool apart = false, of_experts = false, fp8_weights = false;
};

/// The kinds of `parameters`, in the order of each kind's first one.
std::vector<Kind> by_kind(const std::vector<Unit::Named>& parameters,
                          const DataParallelOptions& options) {
  std::vector<Kind> kinds;
  for (const auto& named : parameters) {
    const auto replication = options.replication ? options.replication(named.first) : Replication{};
    const bool apart = options.apart && options.apart(named.first, named.second);
    const bool of_experts = options.of_experts && options.of_experts(named.first);
    const bool fp8_weights = options.fp8_weights && options.fp8_weights(named.first);
    const auto same = [&](const Kind& kind) {
      const auto& other = kind.parameters.front().second;
      return other.scalar_type() == named.second.scalar_type() &&
             other.requires_grad() == named.second.requires_grad() &&
             kind.replication.like(replication) && kind.apart == apart &&
             kind.of_experts == of_experts && kind.fp8_weights == fp8_weights;
    };
    const auto found = std::ranges::find_if(kinds, same);
    if (found == kinds.end()) {
      kinds.push_back({{named}, replication, apart, of_experts, fp8_weights});
    } else {
      found->parameters.push_back(named);
    }
  }
  return kinds;
}

FlatOptions flat_options(const UnitOptions& unit, const DataParallelOptions& all,
                         const SharingAxes& axes, const torch::Tensor& parameter,
                         torch::Device device) {
  const auto& offload = all.offload;
  const bool offloaded = offload.offload_params || offload.offload_optimizer ||
                         (offload.on_drives != OnDrives::nothing && !device.is_cpu());
  FlatOptions options{.placement = unit.placement,
                      .device = device,
                      .slice_device = offloaded ? torch::kCPU : device,
                      .offloaded = offloaded,
                      .offloads_by_copy = !offload.offload_params,
                      .on_drives = offload.on_drives,
                      .gradients_on_drives = offload.gradients_on_drives,
                      .in_backward = all.update_in_backward,
                      .fp8_gradients = all.fp8_gradients,
                      .decays = all.decays,
                      .treatment = all.treatment};
  if (is_sharded(unit.placement)) {
    options.num_slices = axes.gather.size();
    options.slice = axes.gather.rank();
  }
  const auto& precision = unit.mixed_precision;
  if (precision.param_dtype && parameter.is_floating_point()) {
    options.compute_dtype = precision.param_dtype;
    options.slice_dtype = parameter.requires_grad() ? torch::kFloat32 : *precision.param_dtype;
  }
  options.gradient_dtype = precision.reduce_dtype;
  if (all.sync_module_states) {
    options.values = [&axes, device](const torch::Tensor& own) {
      auto values = own.is_meta() ? torch::empty(own.sizes(), own.options().device(device))
                                  : own.detach().contiguous();
      axes.all.broadcast(values, 0).wait();
      return values;
    };
  }
  return options;
}

}  // namespace

DataAxes DataAxes::of(const mesh::DeviceMesh& mesh, int inner_size) {
  const auto shared_over = [&](std::string_view replicate, std::string_view shard) {
    return SharingAxes{.all = mesh.axis({replicate, shard}),
                       .replicate = mesh.axis(replicate),
                       .gather = mesh.axis(shard),
                       .reduce = mesh.axis(shard, {.channel = "reduce"})};
  };
  DataAxes axes;
  static_cast<SharingAxes&>(axes) = shared_over("dp_replicate", "dp_shard");
  axes.experts = mesh.shape().experts_apart() ? shared_over("expert_replicate", "expert_shard")
                                              : static_cast<const SharingAxes&>(axes);
  axes.ep = mesh.axis("ep");
  const auto& shape = mesh.shape();
  const auto at = mesh.coordinates(mesh.rank());
  const auto along = [&](mesh::AxisName axis) { return at[static_cast<size_t>(axis)]; };
  axes.first_copy = shape.dp_shard > 1
                        ? along(mesh::AxisName::dp_shard) == 0
                        : along(mesh::AxisName::dp_replicate) % shape.ep_of_data() == 0;
  axes.model = mesh.axis({"dp_shard", "ep", "tp"});
  axes.stages = mesh.axis("pp");
  axes.device = mesh.device();
  if (inner_size > 0) axes.inner = mesh.axis("dp_shard", {.split = inner_size});
  return axes;
}

Unit::Unit(std::string name, const std::vector<Named>& parameters, const UnitOptions& options,
           const DataParallelOptions& all, const DataAxes& axes, std::shared_ptr<HostCopies> copies)
    : name_(std::move(name)),
      options_(options),
      axes_(axes),
      copies_(std::move(copies)),
      fp8_communication_(all.fp8_communication) {
  for (const auto& [kind, replication, apart, of_experts, fp8_weights] : by_kind(parameters, all)) {
    const auto& first = kind.front().second;
    const auto device = first.is_meta() ? axes.device : first.device();
    const SharingAxes& sharing = of_experts ? axes_.experts : axes_;
    auto flat = flat_options(options_, all, sharing, first, device);
    flat.replication = replication;
    flat.apart = apart;
    flat.of_experts = of_experts;
    flat.fp8_weights = fp8_weights;
    num_slices_ = std::max(num_slices_, flat.num_slices);
    buffers_.emplace_back(kind, std::move(flat));
  }
  earlier_.resize(buffers_.size());
  replicated_sums_.resize(buffers_.size());
  straight_.resize(buffers_.size());
  fp8_sums_.resize(buffers_.size());
  replica_numbers_.resize(buffers_.size());
  if (!gathers()) state_ = State::gathered;
}

void Unit::move_below(const std::string& path) {
  const bool whole = name_ == "root" || name_ == "model";
  name_ = whole ? path : path + "." + name_;
  for (auto& buffer : buffers_) buffer.prefix_names(path + ".");
}

bool Unit::frees_whole() const {
  return std::ranges::any_of(buffers_,
                             [](const auto& buffer) { return !buffer.plan().keeps_whole; });
}

bool Unit::frees_gradient() const {
  return std::ranges::any_of(buffers_,
                             [](const auto& buffer) { return !buffer.plan().keeps_gradient; });
}

bool Unit::sums_over_ranks_beside() const {
  return std::ranges::any_of(buffers_, [](const auto& buffer) {
    return buffer.trained() && buffer.options().replication.partial_gradients;
  });
}

bool Unit::sums_over_replicas(const FlatBuffer& buffer) const {
  return buffer.trained() && buffer.plan().num_slices > 1 && axes_.of(buffer).replicate.size() > 1;
}

bool Unit::sums_over_replicas() const {
  return std::ranges::any_of(buffers_,
                             [this](const auto& buffer) { return sums_over_replicas(buffer); });
}

bool Unit::gathers() const {
  return std::ranges::any_of(buffers_, [](const auto& buffer) { return buffer.gathers(); });
}

void Unit::wait(std::vector<comm::Work>& works, double& seconds) const {
  const Timed timed(seconds);
  try {
    for (auto& work : works) work.wait();
  } catch (const c10::DistError& error) {
    throw c10::DistError(fmt::format("{} (unit {})", error.what_without_backtrace(), name_),
                         nullptr);
  }
  works.clear();
}

void Unit::start_gather() {
  if (state_ != State::sliced) return;
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    auto& buffer = buffers_[i];
    if (buffer.whole_is_current() || buffer.codes_are_current()) continue;
    if (buffer.has_codes()) {
      buffer.encode_slice();
      if (buffer.plan().num_slices == 1) continue;
      const auto& codes = buffer.codes.tensor();
      gathers_.push_back(axes_.of(buffer).gather.all_gather(codes, buffer.own_part(codes)));
      continue;
    }
    const auto& whole = buffer.receive_whole();
    const bool inner = !inner_parts_.empty();
    const auto& axis = inner ? axes_.inner : axes_.of(buffer).gather;
    const bool sliced = buffer.plan().num_slices > 1;
    auto own = buffer.own_part(whole);
    bool comes = false;  // from the host
    if (inner) {
      const int64_t size = buffer.size() / axis.size();
      own = whole.narrow(0, axis.rank() * size, size);
      own.copy_(inner_parts_[i]);
    } else if (const auto source = buffer.gather_source(); !source.is_alias_of(own)) {
      const bool stays = !buffer.region();
      comes = copies_ && buffer.gathers_from_host();
      if (comes) {
        copies_->bring(own, source);
      } else if (sliced && stays && own.dtype() == source.dtype()) {
        own = source;  // the collective brings it to its place
      } else {
        own.copy_(source);  // the cast
      }
    }
    if (!sliced) continue;
    const auto gather = [this, &axis, whole = whole, own] {
      gathers_.push_back(axis.all_gather(whole, own));
    };
    comes ? copies_->after_coming(gather) : gather();
  }
  inner_parts_.clear();
  state_ = State::gathering;
}

void Unit::finish_gather() {
  if (state_ == State::gathered) return;
  start_gather();
  finish_coming();
  wait(gathers_, times_.gather_wait_seconds);
  for (auto& buffer : buffers_) {
    if (buffer.has_codes()) {
      buffer.decode_whole();
    } else {
      buffer.whole_arrived();
    }
  }
  state_ = State::gathered;
}

void Unit::share_copies(std::shared_ptr<HostCopies>& all) {
  if (!copies_) return;
  if (!all) all = copies_;
  finish_coming();
  finish_leaving();
  copies_ = all;
}

void Unit::finish_coming() {
  if (!copies_) return;
  const Timed timed(times_.gather_wait_seconds);
  copies_->finish_coming();
}

void Unit::reshard() {
  if (!frees_whole()) return;
  if (state_ == State::gathering) finish_gather();  // prefetched, not used
  for (auto& buffer : buffers_) buffer.free_whole();
  inner_parts_.clear();
  state_ = State::sliced;
}

void Unit::reshard_after_forward() {
  if (!frees_whole() || options_.reshard_after_forward == ReshardAfterForward(false)) return;
  std::vector<torch::Tensor> parts;
  if (std::holds_alternative<int>(options_.reshard_after_forward)) {
    for (const auto& buffer : buffers_) {
      const int64_t size = buffer.size() / axes_.inner.size();
      parts.push_back(buffer.whole.tensor().narrow(0, axes_.inner.rank() * size, size).clone());
    }
  }
  reshard();
  inner_parts_ = std::move(parts);
}

void Unit::slices_changed(bool frozen_ones) {
  if (state_ == State::gathering) finish_gather();  // prefetched, not used: what arrives is old
  for (auto& buffer : buffers_) {
    if (buffer.trained() || frozen_ones) {
      buffer.slice_changed();
    } else {
      buffer.forget_sample();
    }
  }
  if (!gathers()) return;
  reshard();
  inner_parts_.clear();
  state_ = State::sliced;
}

void Unit::parameters_changed(bool frozen_ones) {
  slices_changed(frozen_ones);
  if (!gathers()) return;
  for (auto& buffer : buffers_) {
    const bool changed = buffer.trained() || frozen_ones;
    if (changed || !buffer.plan().keeps_whole) buffer.leave_views();
  }
}

void Unit::keep_written() {
  finish_gather();
  for (auto& buffer : buffers_) buffer.whole_changed();
}

void Unit::check_parameters() const {
  for (const auto& buffer : buffers_) {
    TORCH_CHECK_VALUE(
        !buffer.unfilled(), *buffer.unfilled(),
        ": was on the meta device and has no values; call fill() of the sharded model");
    const auto stray = buffer.stray_parameter();
    TORCH_CHECK_VALUE(!stray, *stray,
                      ": does not lie where sharding put it; call to() before, and load between "
                      "unshard() and reshard()");
  }
}

bool Unit::slices_are_ahead(bool apart) const {
  return std::ranges::any_of(buffers_, [&](const auto& buffer) {
    return !(apart && buffer.plan().slice_in_whole) && buffer.slice_is_ahead();
  });
}

void Unit::keep_samples(bool apart) {
  for (auto& buffer : buffers_) {
    if (!apart || !buffer.plan().slice_in_whole) buffer.keep_sample();
  }
}

void Unit::check_written(bool reduced) {
  for (auto& buffer : buffers_) {
    // Where the slice is part of the whole parameters, writing these is writing it.
    if (buffer.plan().slice_in_whole && !(reduced && sharded())) {
      buffer.note_versions();
      continue;
    }
    const auto written = buffer.written_parameter();
    TORCH_CHECK_VALUE(!written, *written,
                      ": was written where that is lost; write parameters between unshard() and "
                      "reshard(), and make optimizers of the sharded model's parameters()");
  }
}

}  // namespace tessera::parallel
