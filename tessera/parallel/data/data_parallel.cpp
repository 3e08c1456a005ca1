#include "tessera/parallel/data/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <utility>

#include "tessera/optim/norm.h"
#include "tessera/parallel/data/engine.h"
#include "tessera/parallel/data/parameter_check.h"

namespace tessera::parallel {
namespace {

/// The values of 0-d float64 tensors. The host waits for a GPU once, however many are there.
std::vector<double> values_of(const std::vector<torch::Tensor>& numbers) {
  std::vector<torch::Tensor> on_device;
  for (const auto& number : numbers) {
    if (!number.is_cpu()) on_device.push_back(number);
  }
  const auto copied = on_device.empty() ? torch::Tensor() : torch::stack(on_device).cpu();
  const double* next = on_device.empty() ? nullptr : copied.const_data_ptr<double>();
  std::vector<double> values;
  for (const auto& number : numbers) {
    values.push_back(number.is_cpu() ? *number.const_data_ptr<double>() : *next++);
  }
  return values;
}

}  // namespace

DataParallel::Engine& DataParallel::engine() const {
  TORCH_CHECK_VALUE(!engine_->absorbed,
                    "expected the handle of the whole model: this part was sharded into it since");
  return *engine_;
}

void DataParallel::watch_outputs(bool on) {
  if (on) engine().nonfinite_output.reset();
  engine().watching = on;
}

std::string DataParallel::first_nonfinite_output() const {
  const auto& order = engine().order;
  auto first = static_cast<int64_t>(order.size());
  if (engine().nonfinite_output) {
    first = static_cast<int64_t>(engine().place[*engine().nonfinite_output]);
  }
  const auto tensor = torch::tensor({first});
  engine().axes.all.all_reduce(tensor, comm::ReduceOp::min).wait();
  engine().axes.model.all_reduce(tensor, comm::ReduceOp::min).wait();
  const auto index = static_cast<size_t>(tensor.item<int64_t>());
  const auto found = index == order.size() ? "" : engine().units[order[index]].name();
  for (const auto& unit : engine().axes.stages.all_gather_bytes(found)) {
    if (!unit.empty()) return unit;
  }
  return "";
}

void DataParallel::begin_pass(int stage, int micro_batch) {
  engine().begin_pass({stage, micro_batch});
}

void DataParallel::set_requires_gradient_sync(bool required) {
  engine().requires_sync = required;
  // What was unfrozen counts on all ranks from here on, also where its modules did not run.
  for (size_t i = 0; i < engine().units.size(); ++i) engine().watch_gradients(i);
}
void DataParallel::set_is_last_backward(bool last) { engine().is_last = last; }
void DataParallel::set_gradient_divide_factor(double factor) { engine().divide_factor = factor; }
void DataParallel::on_reduced(std::function<void(size_t slice)> update) {
  engine().on_reduced = std::move(update);
}
void DataParallel::reduce_after(const DataParallel& other) {
  engine().reduces_after = other.engine_;
  other.engine().reduces_before = engine_;
}
void DataParallel::finish_backward() { engine().finish_backward(); }
void DataParallel::finish_step() { engine().finish_step(); }
bool DataParallel::forward_is_open() const {
  return std::ranges::any_of(engine().calls,
                             [](const auto& state) { return !state.backwards.empty(); });
}
bool DataParallel::backward_is_open() const { return engine().backward_is_open(); }
void DataParallel::drop_gradients() { engine().drop_gradients(); }

void DataParallel::unshard() {
  const bool begins = !std::exchange(engine().unsharded, true);
  if (begins && engine().has_gradients) {
    // An optimizer may have been there, whose finish_step() is to come.
    for (auto& unit : engine().units) {
      unit.check_written(/*reduced=*/true);
      engine().stepped |= unit.slices_are_ahead(/*apart=*/false);
    }
    for (auto& unit : engine().units) unit.slices_changed(/*frozen_ones=*/false);
    engine().amax_is_shared = false;
  }
  engine().share_amax();
  for (auto& unit : engine().units) unit.start_gather();
  for (auto& unit : engine().units) unit.finish_gather();
  for (auto& unit : engine().units) {
    if (begins) unit.keep_samples(/*apart=*/true);
  }
}

void DataParallel::reshard() {
  if (engine().unsharded) {
    for (const auto& unit : engine().units) {
      Engine::check_step_ended(unit, !unit.slices_are_ahead(/*apart=*/true), "reshard()");
    }
    engine().amax_is_shared = false;
  }
  for (auto& unit : engine().units) {
    if (engine().unsharded) unit.keep_written();
    unit.reshard();
  }
  engine().unsharded = false;
  engine().note_all_memory();
}

GradientNorm DataParallel::gradient_norm() const {
  const auto& engine = this->engine();
  auto squares = engine.squares;  // of this rank's part of each unit
  for (size_t i = 0; !engine.options.update_in_backward && i < squares.size(); ++i) {
    squares[i] = engine.sum_of_squares(i);
  }
  const auto sums = torch::tensor(values_of(squares), torch::kFloat64);
  engine.axes.model.all_reduce(sums).wait();
  GradientNorm result;
  double sum = 0;
  for (const size_t i : engine.order) {  // backward comes to the last of them first
    const double square = sums.const_data_ptr<double>()[i];
    sum += square;
    if (!std::isfinite(square)) result.nonfinite_unit = engine.units[i].name();
  }
  const auto total = torch::tensor(sum, torch::kFloat64);
  engine.axes.stages.all_reduce(total).wait();
  result.norm = std::sqrt(*total.const_data_ptr<double>());
  if (!std::isfinite(result.norm)) {
    for (const auto& unit : engine.axes.stages.all_gather_bytes(result.nonfinite_unit)) {
      if (!unit.empty()) result.nonfinite_unit = unit;
    }
  }
  return result;
}

double DataParallel::clip_grad_norm(double max_norm) {
  TORCH_CHECK_VALUE(max_norm > 0, "clip_grad_norm: expected a norm above 0, got ", max_norm);
  const double norm = gradient_norm().norm;
  const double factor = optim::clip_factor(norm, max_norm);
  if (factor != 1) scale_gradients(factor);
  return norm;
}

void DataParallel::scale_gradients(double factor) {
  const torch::NoGradGuard no_grad;
  for (auto& unit : engine().units) {
    for (auto& buffer : unit.buffers()) {
      if (!buffer.trained()) continue;
      buffer.bring_gradient();
      const bool in_8_bits = buffer.plan().fp8_gradients;
      if (factor == 0 && in_8_bits) {
        buffer.keep_gradient(torch::zeros({buffer.slice_size()}));
      } else if (factor == 0) {
        buffer.gradient_of_slice().zero_();  // where a product with NaN is none
      } else {
        (in_8_bits ? buffer.gradient_factor() : buffer.gradient_of_slice()).mul_(factor);
      }
      buffer.put_gradient_away();
    }
  }
}

const std::vector<DataParallel::Slice>& DataParallel::slices() const {
  engine().slices_taken = true;
  return engine().slices;
}

void DataParallel::keep_masters(const std::function<offload::StoredBytes(size_t slice)>& bytes) {
  for (size_t u = 0; u < engine().units.size(); ++u) {
    auto [slice, end] = engine().slices_of_unit[u];
    for (auto& buffer : engine().units[u].buffers()) {
      for (; slice < end && engine().slices[slice].parameter.is_alias_of(buffer.slice()); ++slice) {
        const auto& parameter = engine().slices[slice].parameter;
        if (!buffer.plan().master_on_drives) continue;
        const int64_t begin = parameter.storage_offset();
        buffer.keep_master(begin, begin + parameter.numel(), bytes(slice));
      }
    }
  }
}

const offload::StoredRegions* DataParallel::stored() const { return engine().regions.get(); }
const offload::StoredRegions* DataParallel::stored_gradients() const {
  return engine().gradient_regions.get();
}
int64_t DataParallel::memory_for_drives() const {
  int64_t bytes = 0;
  for (const auto* regions : {stored(), stored_gradients()})
    bytes += regions == nullptr ? 0 : regions->memory_bytes();
  return bytes;
}

std::vector<torch::Tensor> DataParallel::parameters() const {
  engine().take_leaves();
  std::vector<torch::Tensor> tensors;
  for (const auto& leaf : engine().leaves) tensors.push_back(leaf.tensor);
  return tensors;
}

torch::OrderedDict<std::string, torch::Tensor> DataParallel::named_parameters() const {
  engine().take_leaves();
  torch::OrderedDict<std::string, torch::Tensor> named;
  for (const auto& leaf : engine().leaves) named.insert(leaf.name, leaf.tensor);
  return named;
}

const std::vector<std::pair<std::string, torch::Tensor>>& DataParallel::named_buffers() const {
  return engine().module_buffers;
}

std::vector<DataParallel::Part> DataParallel::parts() const {
  const auto& axes = engine().axes;
  std::vector<Part> parts;
  auto leaf = engine().leaves.begin();  // one for each extent, in the same order
  for (auto& unit : engine().units) {
    for (auto& buffer : unit.buffers()) {
      const auto& sharing = axes.of(buffer);
      const auto& replicas = buffer.plan().num_slices > 1 ? sharing.replicate : sharing.all;
      const auto& holders = buffer.options().replication.ranks;
      for (auto& extent : buffer.owned()) {
        auto& part = parts.emplace_back();
        part.replicas = replicas.size() * holders.size();
        part.replica = replicas.rank() * holders.size() + holders.rank();
        if (holders.size() > 1) part.replica_group = holders.name();
        if (buffer.options().of_experts) part.replica_group = replicas.name();
        part.slice = (leaf++)->slice;
        if (part.slice) {
          part.offset = extent.values.storage_offset() -
                        engine().slices[*part.slice].parameter.storage_offset();
        }
        if (extent.values.is_meta()) part.stored = buffer.stored();
        part.extent = std::move(extent);
      }
    }
  }
  return parts;
}

void DataParallel::values_changed() {
  engine().amax_is_shared = engine().stepped = false;
  for (auto& unit : engine().units) unit.parameters_changed(/*frozen_ones=*/true);
}

void DataParallel::fill(const FlatBuffer::Fill& set) {
  for (auto& unit : engine().units) {
    for (auto& buffer : unit.buffers()) buffer.fill(set);
  }
  values_changed();
  if (!engine().options.check_parameters) return;
  // Ranks that hold the same slices must hold the same values.
  const auto& axes = engine().axes;
  for (const bool of_experts : {false, true}) {
    if (of_experts && !engine().options.of_experts) continue;
    std::vector<CheckedUnit> sliced, whole;
    for (auto& unit : engine().units) {
      for (auto& buffer : unit.buffers()) {
        if (buffer.options().of_experts != of_experts) continue;
        auto& checked = (buffer.plan().num_slices > 1 ? sliced : whole).emplace_back();
        checked.name = unit.name();
        for (const auto& extent : buffer.owned()) {
          checked.parameters.emplace_back(extent.name, extent.values);
        }
      }
    }
    const SharingAxes& sharing = of_experts ? axes.experts : axes;
    check_same_model(sliced, /*values=*/true, sharing.all, /*slice=*/sharing.gather.rank());
    check_same_model(whole, /*values=*/true, sharing.all);
  }
}

std::vector<std::string> DataParallel::parameters_without_scale() const {
  std::vector<std::string> names;
  for (const auto& unit : engine().units) {
    for (const auto& buffer : unit.buffers())
      std::ranges::copy(buffer.without_scale(), std::back_inserter(names));
  }
  return names;
}

std::vector<std::string> DataParallel::parameters_without_gradient() const {
  // Every entry: does this rank's part of it hold anything but zero?
  std::vector<std::string> names;
  std::vector<double> used;
  std::vector<size_t> of_experts;  // of these
  for (auto& unit : engine().units) {
    for (auto& buffer : unit.buffers()) {
      if (!buffer.trained()) continue;
      buffer.bring_gradient();
      const auto gradient = buffer.gradient_numbers();
      for (const auto& entry : buffer.entries()) {
        const int64_t begin =
            std::clamp<int64_t>(entry.offset - buffer.slice_begin(), 0, buffer.slice_size());
        const int64_t end = std::clamp<int64_t>(
            entry.offset + entry.parameter.numel() - buffer.slice_begin(), 0, buffer.slice_size());
        if (buffer.options().of_experts) of_experts.push_back(names.size());
        names.push_back(entry.name);
        used.push_back(gradient.slice(0, begin, end).any().item<bool>() ? 1 : 0);
      }
      buffer.put_gradient_away();
    }
  }
  const auto& axes = engine().axes;
  const auto anywhere = torch::tensor(used, torch::kFloat64), experts = anywhere.clone();
  axes.model.all_reduce(anywhere).wait();
  if (!of_experts.empty()) axes.experts.gather.all_reduce(experts).wait();
  // The ranks of ep have experts of different names.
  std::string lines, of_expert_lines;
  for (size_t i = 0; i < names.size(); ++i) {
    const bool is_expert = std::ranges::binary_search(of_experts, i);
    const auto& sums = is_expert ? experts : anywhere;
    if (sums.const_data_ptr<double>()[i] != 0) continue;
    (is_expert ? of_expert_lines : lines) += names[i] + '\n';
  }
  for (const auto& of_rank : axes.ep.all_gather_bytes(of_expert_lines)) lines += of_rank;
  std::vector<std::string> unused;
  for (const auto& of_stage : axes.stages.all_gather_bytes(lines)) {
    for (std::istringstream stream(of_stage); std::getline(stream, lines);) unused.push_back(lines);
  }
  return unused;
}

const std::vector<Unit>& DataParallel::units() const { return engine().units; }

DataParallelMemory DataParallel::memory() const {
  engine().note_all_memory();
  return engine().memory;
}

std::vector<UnitWaits> DataParallel::waits() const {
  std::vector<UnitWaits> result;
  for (const auto& unit : engine().units) result.push_back({unit.name(), unit.times()});
  return result;
}

}  // namespace tessera::parallel
