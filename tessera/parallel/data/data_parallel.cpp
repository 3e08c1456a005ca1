#include "tessera/parallel/data/data_parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/base/pattern.h"
#include "tessera/optim/norm.h"
#include "tessera/parallel/data/parameter_check.h"

namespace tessera::parallel {

/// What the hooks of all units share.
struct DataParallel::Engine : std::enable_shared_from_this<Engine> {
  /// A forward and its backward through one stage; without a pipeline always the same.
  struct Pass {
    int stage = 0, micro_batch = 0;
    auto operator<=>(const Pass&) const = default;
  };
  struct Calls {
    std::map<Pass, int64_t> backwards;  // forwards whose backward has not ended
    int stage = 0;                      // that ran it last
    bool done = false;                  // in this backward, everything that was to come
    size_t modules = 0;                 // of the unit that ended their forward, in this forward
  };

  DataParallelOptions options;
  DataAxes axes;
  std::vector<Unit> units;
  std::vector<UnitModules> modules;
  std::vector<Calls> calls;
  std::vector<Slice> slices;
  std::vector<size_t> order;      // units in the order of the forward; at first as given
  std::vector<size_t> forwarded;  // since the last backward that reduced, each once
  std::deque<size_t> reducing;    // started, not finished
  size_t launched = 0;            // units whose reduction was started, from the end of `order`
  Pass pass;
  bool order_known = false, requires_sync = true, is_last = true;
  bool unsharded = false;  // by the user: hooks free nothing
  double divide_factor = 1;
  mutable DataParallelMemory memory;

  bool watching = false;
  std::optional<size_t> nonfinite_output;

  void attach();
  void watch_output(size_t unit, const torch::Tensor& output);
  void list_slices();

  void begin_pass(const Pass& next);
  bool keeps_whole(size_t unit) const;

  // Hooks.
  void before_forward(size_t unit, nn::Hookable& module);
  void after_forward(size_t unit, bool backward_follows);
  void before_backward(size_t unit);
  void after_backward(size_t unit);

  // Parameters.
  void prefetch(size_t unit, int direction);
  int64_t gathered_units() const;
  void note_memory() const;

  // Gradients.
  void launch_ready();
  void launch_next();
  void settle(size_t at_most);
  void finish_backward();
  void agree_on_order();
  void finish_step();
};

namespace {

std::vector<CheckedUnit> named_units(const torch::nn::Module& model,
                                     const std::vector<UnitModules>& units) {
  std::unordered_map<const void*, std::string> names;
  std::vector<std::pair<std::string, const void*>> all;
  for (const auto& item : model.named_parameters()) {
    const auto* key = item.value().unsafeGetTensorImpl();
    if (names.emplace(key, item.key()).second) all.emplace_back(item.key(), key);
  }
  std::unordered_set<const void*> taken;
  std::vector<CheckedUnit> result;
  for (size_t i = 0; i < units.size(); ++i) {
    result.push_back({units[i].name, {}});
    for (const auto& parameter : parameters_of(units, i)) {
      const auto* key = parameter.unsafeGetTensorImpl();
      if (taken.insert(key).second) {
        result.back().parameters.emplace_back(names.at(key), parameter);
      }
    }
    TORCH_CHECK_VALUE(!result.back().parameters.empty(), "unit ", units[i].name,
                      ": expected a parameter that no earlier unit has");
  }
  for (const auto& [name, key] : all) {
    TORCH_CHECK_VALUE(taken.contains(key), name,
                      ": expected every parameter in a unit; add its module to one");
  }
  return result;
}

/// Each unit's options, with the overrides.
std::vector<UnitOptions> options_by_unit(const std::vector<UnitModules>& units,
                                         const DataParallelOptions& options) {
  std::vector<UnitOptions> result(units.size(), options.unit);
  for (const auto& override_ : options.overrides) {
    std::vector<std::string> names;
    bool found = false;
    for (size_t i = 0; i < units.size(); ++i) {
      names.push_back(units[i].name);
      if (!matches(override_.pattern, units[i].name)) continue;
      result[i] = override_.options;
      found = true;
    }
    if (!found) {
      user_error("unit override: {} matches no unit{}; units are {}", override_.pattern,
                 did_you_mean(override_.pattern, names), fmt::join(names, ", "));
    }
  }
  return result;
}

/// Each unit's policy: none for the first units, as `fraction` says.
std::vector<OffloadPolicy> offload_by_unit(const std::vector<CheckedUnit>& units,
                                           const OffloadPolicy& policy) {
  TORCH_CHECK_VALUE(!(policy.offload_params && policy.offload_optimizer),
                    "offload: expected offload_params or offload_optimizer, got both");
  TORCH_CHECK_VALUE(policy.fraction >= 0 && policy.fraction <= 1,
                    "offload: expected a fraction from 0 to 1, got ", policy.fraction);
  std::vector<double> elements;
  for (const auto& unit : units) {
    double sum = 0;
    for (const auto& [name, parameter] : unit.parameters) {
      sum += static_cast<double>(parameter.numel());
    }
    elements.push_back(sum);
  }
  const double wanted = policy.fraction * std::accumulate(elements.begin(), elements.end(), 0.0);
  std::vector<OffloadPolicy> result(units.size());
  double offloaded = 0;
  for (size_t i = units.size(); i-- > 0 && offloaded < wanted;) {
    result[i] = policy;
    offloaded += elements[i];
  }
  return result;
}

void check_options(const std::vector<UnitModules>& units, const std::vector<UnitOptions>& options,
                   const DataAxes& axes) {
  for (size_t i = 0; i < units.size(); ++i) {
    const auto* k = std::get_if<int>(&options[i].reshard_after_forward);
    if (k == nullptr) continue;
    if (options[i].placement != Placement::full_shard) {
      user_error(
          "unit {}: reshard_after_forward {} takes effect with full_shard only; leave it out",
          units[i].name, *k);
    }
    if (*k != axes.inner.size() || *k < 1) {
      user_error(
          "unit {}: expected reshard_after_forward that divides the {} ranks of {}, the same for "
          "all units, got {}; set it to a divisor, true or false",
          units[i].name, axes.gather.size(), axes.gather.name(), *k);
    }
  }
}

/// The policy's casts, as hooks of the unit's modules.
nn::Hooks policy_hooks(const MixedPrecisionPolicy& policy) {
  nn::Hooks hooks;
  if (policy.param_dtype && policy.cast_forward_inputs) {
    hooks.cast_input = [dtype = *policy.param_dtype,
                        all = policy.cast_constant_inputs](torch::Tensor& input) {
      if (input.is_floating_point() && (all || input.requires_grad())) input = input.to(dtype);
    };
  }
  if (policy.output_dtype) {
    hooks.cast_output = [dtype = *policy.output_dtype](torch::Tensor& output) {
      if (output.is_floating_point()) output = output.to(dtype);
    };
  }
  return hooks;
}

}  // namespace

void DataParallel::Engine::list_slices() {
  // Ranks that share parameters otherwise may have other parts of the model beside them.
  std::map<std::string, int64_t> begin_of_shared;
  for (const auto& unit : units) {
    for (const auto& buffer : unit.buffers()) {
      const auto& holders = buffer.options().sharing.holders;
      auto& begin = begin_of_shared
                        .try_emplace(holders.size() > 1 ? holders.name() : "",
                                     int64_t{holders.size() - 1} << 48)
                        .first->second;
      const int64_t first = buffer.slice_begin(), last = first + buffer.slice_size();
      const auto add = [&](int64_t from, int64_t to, bool decayed) {
        from = std::max(from, first), to = std::min(to, last);
        if (from >= to || !buffer.trained()) return;
        slices.push_back({.parameter = buffer.slice().narrow(0, from - first, to - from),
                          .gradient = buffer.gradient_of_slice().narrow(0, from - first, to - from),
                          .decayed = decayed,
                          .begin = begin + from});
      };
      add(0, buffer.decayed(), true);
      add(buffer.decayed(), buffer.size(), false);
      begin += buffer.content_size();
      memory.parameters += static_cast<int64_t>(buffer.slice().nbytes());
      if (buffer.options().keeps_copy) {
        memory.parameters += static_cast<int64_t>(buffer.gather_source().nbytes());
      }
    }
  }
}

void DataParallel::Engine::begin_pass(const Pass& next) {
  if (next == pass) return;
  pass = next;
  for (size_t i = 0; i < units.size(); ++i) {
    calls[i].modules = 0;
    if (!unsharded && !keeps_whole(i)) units[i].reshard();
  }
}

/// Between a forward and its backward.
bool DataParallel::Engine::keeps_whole(size_t index) const {
  return units[index].options().reshard_after_forward == ReshardAfterForward(false) &&
         !calls[index].backwards.empty();
}

void DataParallel::Engine::before_forward(size_t index, nn::Hookable& module) {
  auto& unit = units[index];
  calls[index].stage = pass.stage;
  // Without grad mode, too: a checkpointed block's first forward has none.
  if (!order_known && std::ranges::count(forwarded, index) == 0) forwarded.push_back(index);
  unit.finish_gather();
  if (torch::GradMode::is_enabled() && module.forward_computes_gradients()) unit.begin_gradient();
  if (options.forward_prefetch) prefetch(index, 1);
  note_memory();
}

void DataParallel::Engine::after_forward(size_t index, bool backward_follows) {
  auto& state = calls[index];
  if (backward_follows) ++state.backwards[pass];
  if (++state.modules < modules[index].modules.size()) return;  // others of the unit follow
  state.modules = 0;
  if (unsharded) return;
  // The last unit's backward is next: it keeps what it would gather again at once.
  if (backward_follows && index == order.back()) return;
  if (torch::GradMode::is_enabled()) {
    units[index].reshard_after_forward();
  } else {
    units[index].reshard();
  }
}

void DataParallel::Engine::before_backward(size_t index) {
  units[index].finish_gather();
  units[index].begin_gradient();
  if (options.backward_prefetch == BackwardPrefetch::pre) prefetch(index, -1);
  note_memory();
}

void DataParallel::Engine::after_backward(size_t index) {
  auto& state = calls[index];
  if (--state.backwards[pass] > 0) return;
  state.backwards.erase(pass);
  if (options.backward_prefetch == BackwardPrefetch::post) prefetch(index, -1);
  if (!unsharded && !keeps_whole(index)) units[index].reshard();
  if (!requires_sync || !state.backwards.empty()) return;  // a unit may be of two stages
  state.done = true;
  launch_ready();
}

int64_t DataParallel::Engine::gathered_units() const {
  return std::ranges::count_if(
      units, [](const auto& unit) { return unit.full_shard() && unit.has_whole(); });
}

void DataParallel::Engine::prefetch(size_t index, int direction) {
  const auto here = std::ranges::find(order, index) - order.begin();
  const auto next = here + direction;
  if (next < 0 || next >= static_cast<std::ptrdiff_t>(order.size())) return;
  const size_t other = order[static_cast<size_t>(next)];
  auto& unit = units[other];
  if (unit.has_whole()) return;
  // Backward comes only to units with an open call, and forward stays within its stage.
  if (direction < 0 ? !calls[other].backwards.contains(pass) : calls[other].stage != pass.stage) {
    return;
  }
  if (unit.full_shard() && gathered_units() >= options.max_gathered_units) return;
  unit.start_gather();
}

void DataParallel::Engine::note_memory() const {
  memory.gathered = memory.gradients = 0;
  for (const auto& unit : units) {
    for (const auto& buffer : unit.buffers()) {
      memory.gathered +=
          buffer.whole.bytes() -
          (buffer.slice_in_whole() ? static_cast<int64_t>(buffer.slice().nbytes()) : 0);
      memory.gradients += buffer.gradient.bytes() + buffer.gradient_slice.bytes();
    }
  }
  memory.peak_gathered = std::max(memory.peak_gathered, memory.gathered);
  memory.peak_gradients = std::max(memory.peak_gradients, memory.gradients);
  memory.peak_gathered_units = std::max(memory.peak_gathered_units, gathered_units());
}

// All ranks launch in one order, whatever the order in which backwards end: collectives match by
// order, not by name.
void DataParallel::Engine::launch_ready() {
  while (launched < order.size() && calls[order[order.size() - 1 - launched]].done) launch_next();
}

void DataParallel::Engine::launch_next() {
  const size_t index = order[order.size() - 1 - launched++];
  units[index].start_reduce();
  note_memory();
  reducing.push_back(index);
  // Whole gradients that are freed once reduced: one under way, one being reduced.
  settle(units[index].frees_gradient() ? 1 : order.size());
}

/// Finishes reductions, in order: all beyond `at_most`, and those that are done anyway.
void DataParallel::Engine::settle(size_t at_most) {
  while (!reducing.empty() &&
         (reducing.size() > at_most || units[reducing.front()].reduce_done())) {
    auto& unit = units[reducing.front()];
    unit.finish_reduce(divide_factor);
    if (is_last) unit.start_replicate();
    reducing.pop_front();
  }
}

void DataParallel::Engine::finish_backward() {
  if (!requires_sync) return;
  while (launched < order.size()) launch_next();
  settle(0);
  if (is_last) {
    for (auto& unit : units) unit.finish_replicate();
  }
  launched = 0;
  for (auto& state : calls) state = {};
  if (!order_known) agree_on_order();
  forwarded.clear();
}

/// After the first backward: units in the order in which all ranks ran them, those that did not run
/// first, so that their reductions, the last to be launched, hold up nobody's.
void DataParallel::Engine::agree_on_order() {
  std::vector<size_t> ran;
  for (const size_t unit : order) {
    if (std::ranges::count(forwarded, unit) == 0) ran.push_back(unit);
  }
  ran.insert(ran.end(), forwarded.begin(), forwarded.end());
  const auto text = fmt::format("{}", fmt::join(ran, " "));
  const auto all = axes.all.all_gather_bytes(text);
  if (std::ranges::count(all, text) == axes.all.size()) order = std::move(ran);
  order_known = true;
}

void DataParallel::Engine::finish_step() {
  unsharded = false;
  for (auto& unit : units) {
    unit.forget_gradients();
    unit.parameters_changed();
  }
}

// The model keeps the engine alive through its hooks.
void DataParallel::Engine::attach() {
  const auto engine = shared_from_this();
  for (size_t i = 0; i < modules.size(); ++i) {
    const auto casts = policy_hooks(units[i].options().mixed_precision);
    for (auto* module : modules[i].modules) {
      module->add_hooks(
          {.cast_output = [engine, i](torch::Tensor& output) { engine->watch_output(i, output); }});
      module->add_hooks(
          {.before_forward = [engine, i, module] { engine->before_forward(i, *module); },
           .after_forward = [engine, i](bool follows) { engine->after_forward(i, follows); },
           .before_backward = [engine, i] { engine->before_backward(i); },
           .after_backward = [engine, i] { engine->after_backward(i); },
           .cast_input = casts.cast_input,
           .cast_output = casts.cast_output});
    }
  }
}

void DataParallel::Engine::watch_output(size_t unit, const torch::Tensor& output) {
  if (!watching || nonfinite_output || !output.is_floating_point()) return;
  if (!output.isfinite().all().item<bool>()) nonfinite_output = unit;
}

void DataParallel::watch_outputs(bool on) {
  if (on) engine_->nonfinite_output.reset();
  engine_->watching = on;
}

std::string DataParallel::first_nonfinite_output() const {
  const auto& order = engine_->order;
  auto first = static_cast<int64_t>(order.size());
  if (engine_->nonfinite_output) {
    first = std::ranges::find(order, *engine_->nonfinite_output) - order.begin();
  }
  const auto tensor = torch::tensor({first});
  engine_->axes.all.all_reduce(tensor, comm::ReduceOp::min).wait();
  engine_->axes.model.all_reduce(tensor, comm::ReduceOp::min).wait();
  const auto index = static_cast<size_t>(tensor.item<int64_t>());
  const auto found = index == order.size() ? "" : engine_->units[order[index]].name();
  for (const auto& unit : engine_->axes.stages.all_gather_bytes(found)) {
    if (!unit.empty()) return unit;
  }
  return "";
}

void DataParallel::begin_pass(int stage, int micro_batch) {
  engine_->begin_pass({stage, micro_batch});
}

void DataParallel::set_requires_gradient_sync(bool required) { engine_->requires_sync = required; }
void DataParallel::set_is_last_backward(bool last) { engine_->is_last = last; }
void DataParallel::set_gradient_divide_factor(double factor) { engine_->divide_factor = factor; }
void DataParallel::finish_backward() { engine_->finish_backward(); }
void DataParallel::finish_step() { engine_->finish_step(); }

void DataParallel::unshard() {
  engine_->unsharded = true;
  for (auto& unit : engine_->units) unit.start_gather();
  for (auto& unit : engine_->units) unit.finish_gather();
}

void DataParallel::reshard() {
  engine_->unsharded = false;
  for (auto& unit : engine_->units) unit.reshard();
}

GradientNorm DataParallel::gradient_norm() const {
  const auto& engine = *engine_;
  std::vector<double> squares;  // of this rank's part of each unit
  for (const auto& unit : engine.units) {
    std::vector<torch::Tensor> gradients;
    for (const auto& buffer : unit.buffers()) {
      const bool first_copy = buffer.options().sharing.holders.rank() == 0;
      if (buffer.trained() && first_copy) gradients.push_back(buffer.gradient_of_slice());
    }
    const bool counted = unit.sharded() || engine.axes.gather.rank() == 0;
    squares.push_back(counted ? optim::squared_norm(gradients) : 0);
  }
  const auto sums = torch::tensor(squares, torch::kFloat64);
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
  result.norm = std::sqrt(total.item<double>());
  if (!std::isfinite(result.norm)) {
    for (const auto& unit : engine.axes.stages.all_gather_bytes(result.nonfinite_unit)) {
      if (!unit.empty()) result.nonfinite_unit = unit;
    }
  }
  return result;
}

const std::vector<DataParallel::Slice>& DataParallel::slices() const { return engine_->slices; }

std::vector<torch::Tensor> DataParallel::parameters() const {
  std::vector<torch::Tensor> leaves;
  for (const auto& slice : slices()) {
    leaves.push_back(slice.parameter.detach().requires_grad_());
    leaves.back().mutable_grad() = slice.gradient;
  }
  return leaves;
}

std::vector<DataParallel::Part> DataParallel::parts() const {
  const auto& axes = engine_->axes;
  std::vector<Part> parts;
  for (const auto& unit : engine_->units) {
    const auto& replicas = unit.sharded() ? axes.replicate : axes.all;
    for (const auto& buffer : unit.buffers()) {
      const auto& sharing = buffer.options().sharing;
      for (auto& piece : buffer.pieces()) {
        const auto& holders = sharing.holders;
        Part part;
        part.replicas = replicas.size() * holders.size();
        part.replica = replicas.rank() * holders.size() + holders.rank();
        if (holders.size() > 1) part.sharers = holders.name();
        const auto* data = piece.part.const_data_ptr();
        for (size_t i = 0; i < slices().size(); ++i) {
          const auto& slice = slices()[i].parameter;
          const auto* begin = static_cast<const std::byte*>(slice.const_data_ptr());
          if (data < begin || data >= begin + slice.nbytes()) continue;
          part.slice = i;
          part.offset = piece.part.storage_offset() - slice.storage_offset();
        }
        part.piece = std::move(piece);
        parts.push_back(std::move(part));
      }
    }
  }
  return parts;
}

void DataParallel::values_changed() {
  for (auto& unit : engine_->units) unit.parameters_changed();
}

void DataParallel::fill(const FlatBuffer::Fill& set) {
  for (auto& unit : engine_->units) {
    for (auto& buffer : unit.buffers()) buffer.fill(set);
  }
  values_changed();
  if (!engine_->options.check_parameters) return;
  // Ranks that hold the same slices must hold the same values.
  std::vector<CheckedUnit> sliced, whole;
  for (auto& unit : engine_->units) {
    auto& checked = (unit.sharded() ? sliced : whole).emplace_back(unit.name());
    for (auto& buffer : unit.buffers()) {
      for (const auto& piece : buffer.pieces()) {
        checked.parameters.emplace_back(piece.name, piece.part);
      }
    }
  }
  const auto& axes = engine_->axes;
  check_same_model(sliced, /*values=*/true, axes.all, /*slice=*/axes.gather.rank());
  check_same_model(whole, /*values=*/true, axes.all);
}

std::vector<std::string> DataParallel::parameters_without_gradient() const {
  // Every entry: does this rank's part of it hold anything but zero?
  std::vector<std::string> names;
  std::vector<double> used;
  for (const auto& unit : engine_->units) {
    for (const auto& buffer : unit.buffers()) {
      if (!buffer.trained()) continue;
      const auto gradient = buffer.gradient_of_slice();
      for (const auto& entry : buffer.entries()) {
        const int64_t begin =
            std::clamp<int64_t>(entry.offset - buffer.slice_begin(), 0, buffer.slice_size());
        const int64_t end = std::clamp<int64_t>(
            entry.offset + entry.parameter.numel() - buffer.slice_begin(), 0, buffer.slice_size());
        names.push_back(entry.name);
        used.push_back(gradient.slice(0, begin, end).any().item<bool>() ? 1 : 0);
      }
    }
  }
  const auto anywhere = torch::tensor(used, torch::kFloat64);
  engine_->axes.model.all_reduce(anywhere).wait();
  std::string lines;
  for (size_t i = 0; i < names.size(); ++i) {
    if (anywhere.const_data_ptr<double>()[i] == 0) lines += names[i] + '\n';
  }
  std::vector<std::string> unused;
  for (const auto& of_stage : engine_->axes.stages.all_gather_bytes(lines)) {
    for (std::istringstream stream(of_stage); std::getline(stream, lines);) unused.push_back(lines);
  }
  return unused;
}

const std::vector<Unit>& DataParallel::units() const { return engine_->units; }

DataParallelMemory DataParallel::memory() const {
  engine_->note_memory();
  return engine_->memory;
}

std::vector<UnitWaits> DataParallel::waits() const {
  std::vector<UnitWaits> result;
  for (const auto& unit : engine_->units) result.push_back({unit.name(), unit.times()});
  return result;
}

DataParallel parallelise(torch::nn::Module& model, std::vector<UnitModules> units,
                         const DataAxes& axes, const DataParallelOptions& options) {
  const auto checked = named_units(model, units);
  const auto unit_options = options_by_unit(units, options);
  check_options(units, unit_options, axes);
  if (options.check_parameters) {
    check_same_model(checked, /*values=*/!options.sync_module_states, axes.all);
  }
  auto engine = std::make_shared<DataParallel::Engine>();
  engine->options = options;
  engine->axes = axes;
  engine->divide_factor = options.gradient_divide_factor.value_or(axes.all.size());
  const auto offload = offload_by_unit(checked, options.offload);
  for (size_t i = 0; i < units.size(); ++i) {
    auto of_unit = options;
    of_unit.offload = offload[i];
    engine->units.emplace_back(units[i].name, checked[i].parameters, unit_options[i], of_unit,
                               axes);
    engine->order.push_back(i);
  }
  engine->modules = std::move(units);
  engine->calls.resize(engine->units.size());
  engine->list_slices();
  engine->attach();
  DataParallel handle;
  handle.engine_ = std::move(engine);
  return handle;
}

DataParallel fully_shard(torch::nn::Module& model, const mesh::DeviceMesh& mesh,
                         const DataParallelOptions& options, const UnitRule& rule) {
  const auto* k = std::get_if<int>(&options.unit.reshard_after_forward);
  return parallelise(model, make_units(model, rule), DataAxes::of(mesh, k == nullptr ? 0 : *k),
                     options);
}

DataParallel replicate(torch::nn::Module& model, const mesh::DeviceMesh& mesh,
                       DataParallelOptions options, const UnitRule& rule) {
  options.unit.placement = Placement::replicate;
  options.unit.reshard_after_forward = true;
  return parallelise(model, make_units(model, rule), DataAxes::of(mesh), options);
}

}  // namespace tessera::parallel
