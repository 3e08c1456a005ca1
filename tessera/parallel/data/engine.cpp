#include "tessera/parallel/data/engine.h"

#include <algorithm>
#include <utility>

#include "tessera/autograd/gradient_sink.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/recomputation.h"

namespace tessera::parallel {
void DataParallel::Engine::take_leaves() {
  TORCH_CHECK_VALUE(!options.update_in_backward && !options.fp8_gradients &&
                        options.offload.on_drives < OnDrives::masters,
                    "expected an optimizer over slices(), as update_in_backward, fp8_gradients and "
                    "slices on drives have it");
  if (std::exchange(leaves_taken, true) || !has_gradients) return;
  // A backward came whose arrivals no rank was asked for: all parameters count as having taken
  // part.
  for (auto& unit : units) {
    for (auto& buffer : unit.buffers()) {
      for (size_t i = 0; buffer.trained() && i < buffer.entries().size(); ++i) {
        buffer.set_arrived(i, true);
      }
    }
  }
  give_leaves_gradients();
}

void DataParallel::Engine::give_leaves_gradients() {
  for (auto& leaf : leaves) {
    const auto& buffer = units[leaf.unit].buffers()[leaf.buffer];
    leaf.tensor.requires_grad_(buffer.entries()[leaf.entry].parameter.requires_grad());
    if (!buffer.trained() || !buffer.arrived(leaf.entry)) {
      leaf.tensor.mutable_grad().reset();
      continue;
    }
    const bool in_whole = buffer.plan().gradient_slice_in_gradient;
    const auto& gradient = in_whole ? buffer.gradient : buffer.gradient_slice;
    if (!gradient.allocated()) continue;
    leaf.tensor.mutable_grad() =
        gradient.part((in_whole ? buffer.slice_begin() : 0) + leaf.offset, leaf.tensor.sizes());
  }
}

void DataParallel::Engine::begin_pass(const Pass& next) {
  if (next == pass) return;
  pass = next;
  for (size_t i = 0; i < units.size(); ++i) {
    calls[i].forward.clear();
    calls[i].running = 0;
    if (unsharded || keeps_whole(i)) continue;
    units[i].reshard();
    note_memory(i);
  }
}

/// Does a unit keep its whole parameters between a forward and its backward?
bool DataParallel::Engine::keeps_whole(size_t index) const {
  return units[index].options().reshard_after_forward == ReshardAfterForward(false) &&
         !calls[index].backwards.empty();
}

/// Does a unit's backward read its parameters? The gradient of a table needs the ids alone.
bool DataParallel::Engine::backward_reads(size_t index) const {
  return !std::ranges::all_of(modules[index].modules, [](const nn::Hookable* module) {
    const auto* table = dynamic_cast<const nn::EmbeddingImpl*>(module);
    return table != nullptr && !table->beside;
  });
}

void DataParallel::Engine::before_forward(size_t index, nn::Hookable& module) {
  auto& unit = units[index];
  unit.check_parameters();
  const bool ahead = (!unsharded || has_gradients) && unit.slices_are_ahead(/*apart=*/false);
  check_step_ended(unit, !stepped && !ahead, "the next forward");
  if (!unsharded && !unit.frees_whole()) unit.check_written(/*reduced=*/false);
  watch_gradients(index);
  calls[index].stage = pass.stage;
  calls[index].ran = true;
  ++calls[index].running;
  // Without grad mode, too: a checkpointed block's first forward has none.
  if (!order_known && !std::exchange(calls[index].forwarded, true)) forwarded.push_back(index);
  share_amax();
  unit.finish_gather();
  if (torch::GradMode::is_enabled() && module.forward_computes_gradients()) begin_gradient(index);
  note_memory(index);
  if (options.forward_prefetch) prefetch(index, 1);
  read_ahead(index, nn::Recomputation::ran_before() ? -1 : 1);
}

// Note [Backwards to come]. A unit is reduced once no backward of any call of its modules is to
// come. A call inside a checkpointed module's first forward has none of its own, but it will run
// again: it is counted then. When it runs again it is not counted a second time; if then no
// gradient will reach it, its backward is over.
void DataParallel::Engine::after_forward(size_t index, const nn::Hookable& module,
                                         bool backward_follows) {
  auto& state = calls[index];
  const bool runs_again = nn::Recomputation::runs_again();
  const bool follows = backward_follows || runs_again;
  if (nn::Recomputation::ran_before()) {
    if (!follows) after_backward(index);
  } else if (follows) {
    ++state.backwards[pass];
  }
  state.forward.insert(&module);
  --state.running;
  // Others of the unit follow, or one of them is what called this one.
  if (state.running > 0 || state.forward.size() < modules[index].modules.size()) return;
  state.forward.clear();
  // A module that calls itself and runs again goes on with its parameters.
  if (unsharded || state.in_backward > 0) return;
  units[index].check_written(/*reduced=*/false);
  // The last unit's backward is next: it keeps what it would gather again at once.
  if (backward_follows && index == order.back()) return;
  if (torch::GradMode::is_enabled() || runs_again) {
    units[index].reshard_after_forward();
  } else {
    units[index].reshard();
  }
  note_memory(index);
}

void DataParallel::Engine::before_backward(size_t index) {
  TORCH_CHECK_VALUE(!torch::GradMode::is_enabled(), "unit ", units[index].name(),
                    ": expected a backward without create_graph; gradients of gradients are not "
                    "computed for a data-parallel model");
  begin_gradient(index);
  ++calls[index].in_backward;
  if (backward_reads(index)) units[index].finish_gather();
  note_memory(index);
  if (options.backward_prefetch == BackwardPrefetch::pre) prefetch(index, -1);
  read_ahead(index, -1);
}

void DataParallel::Engine::after_backward(size_t index) {
  auto& state = calls[index];
  if (state.in_backward > 0) --state.in_backward;
  const auto open = state.backwards.find(pass);
  // A graph's second backward (retain_graph) has no count: the unit is launched at the end.
  const bool counted = open != state.backwards.end();
  if (counted && --open->second > 0) return;
  if (counted) state.backwards.erase(open);
  if (options.backward_prefetch == BackwardPrefetch::post) prefetch(index, -1);
  // Without a count another module of the unit, around this one, may still need its parameters.
  const bool in_use = !counted && state.in_backward > 0;
  if (!unsharded && !in_use && !keeps_whole(index)) units[index].reshard();
  note_memory(index);
  if (!counted || !state.backwards.empty()) return;  // it may be of two stages
  if (requires_sync) {
    state.done = true;
    launch_ready();
  }
  // Who reads gradients before they are reduced finds zeros where nothing arrived.
  const auto is_over = [](const Calls& of_unit) { return of_unit.backwards.empty(); };
  if (!std::ranges::all_of(calls, is_over)) return;
  for (size_t i = 0; i < units.size(); ++i) {
    if (!calls[i].launched) units[i].fill_gradient();
  }
}

void DataParallel::Engine::prefetch(size_t index, int direction) {
  const auto next = static_cast<std::ptrdiff_t>(place[index]) + direction;
  if (next < 0 || next >= static_cast<std::ptrdiff_t>(order.size())) return;
  const size_t other = order[static_cast<size_t>(next)];
  auto& unit = units[other];
  if (unit.has_whole() || (direction < 0 && !backward_reads(other))) return;
  // Backward comes only to units with an open call, recomputed forwards too; forward stays within
  // its stage.
  const bool in_backward = direction < 0 || nn::Recomputation::ran_before();
  if (in_backward ? !calls[other].backwards.contains(pass) : calls[other].stage != pass.stage) {
    return;
  }
  if (unit.frees_whole() && gathered_units >= options.max_gathered_units) return;
  unit.start_gather();
  note_memory(other);
}

void DataParallel::Engine::note_memory(size_t index) {
  const auto& unit = units[index];
  UnitMemory now{.whole = unit.frees_whole() && unit.has_whole()};
  for (const auto& buffer : unit.buffers()) {
    now.gathered +=
        buffer.whole_bytes() -
        (buffer.plan().slice_in_whole ? static_cast<int64_t>(buffer.slice().nbytes()) : 0) +
        buffer.codes.bytes();
    now.gradients += buffer.gradient.bytes() + buffer.gradient_slice.bytes();
  }
  const auto before = std::exchange(unit_memory[index], now);
  memory.gathered += now.gathered - before.gathered;
  memory.gradients += now.gradients - before.gradients;
  gathered_units += int64_t{now.whole} - int64_t{before.whole};
  memory.peak_gathered = std::max(memory.peak_gathered, memory.gathered);
  memory.peak_gradients = std::max(memory.peak_gradients, memory.gradients);
  memory.peak_gathered_units = std::max(memory.peak_gathered_units, gathered_units);
}

void DataParallel::Engine::note_all_memory() {
  for (size_t i = 0; i < units.size(); ++i) note_memory(i);
}

/// Has the model before this one launched all that it has?
bool DataParallel::Engine::may_launch() const {
  const auto before = reduces_after.lock();
  if (!before) return true;
  const auto has_trained = [](const Unit& unit) {
    return std::ranges::any_of(unit.buffers(), &FlatBuffer::trained);
  };
  const bool has_none = std::ranges::none_of(before->units, has_trained);
  return (has_none || before->launched == before->order.size()) && before->may_launch();
}

// All ranks launch in one order, whatever the order in which backwards end: collectives match by
// order, not by name.
void DataParallel::Engine::launch_ready() {
  if (!may_launch()) return;
  while (launched < order.size() && calls[order[order.size() - 1 - launched]].done) launch_next();
  const auto next = reduces_before.lock();
  if (next && launched == order.size()) next->launch_ready();
}

void DataParallel::Engine::launch_next() { launch(order[order.size() - 1 - launched++]); }

void DataParallel::Engine::launch(size_t index) {
  calls[index].launched = true;
  read_gradients_ahead(index);
  units[index].start_reduce();
  note_memory(index);
  reducing.push_back(index);
  // What is freed once reduced, or takes memory while it is: one under way, one being reduced.
  const auto& unit = units[index];
  const bool holds_more =
      unit.frees_gradient() || unit.sums_over_replicas() || unit.sums_in_8_bits();
  settle(holds_more ? 1 : order.size());
}

/// Something is about to add to the unit's gradient.
void DataParallel::Engine::begin_gradient(size_t index) {
  check_not_updated(index);
  if (calls[index].launched) reopen(index);
  units[index].begin_gradient();
}

/// A second backward before finish_backward (retain_graph, another loss) reaches a unit that was
/// launched: what it adds is reduced once more, at the end.
void DataParallel::Engine::reopen(size_t index) {
  while (units[index].reducing()) settle(reducing.size() - 1);
  calls[index].launched = false;
  calls[index].again = true;
}

/// autograd is about to add to a parameter of the unit: in its modules' backward, or from elsewhere
/// (a penalty on the weights), which may be after that.
void DataParallel::Engine::gradient_arrives(size_t index, const torch::Tensor& parameter) {
  // Asking all of the unit's parameters each time would be dear.
  const bool is_there =
      !calls[index].launched && parameter.grad().defined() && !units[index].reduced();
  is_there ? check_not_updated(index) : begin_gradient(index);
  if (parameter.grad().defined()) autograd::fill_unwritten(parameter.grad());
}

/// Finishes reductions, in order: all beyond `at_most`, and those that are done anyway. Not these
/// where a sum over replicas follows: it starts at the same place on all ranks.
void DataParallel::Engine::settle(size_t at_most) {
  const auto is_done = [&](const Unit& unit) {
    const bool sums_once_more = unit.sums_over_replicas() || unit.sums_in_8_bits() ||
                                (options.update_in_backward && unit.sums_over_ranks_beside());
    return !sums_once_more && unit.reduce_done();
  };
  while (!reducing.empty() && (reducing.size() > at_most || is_done(units[reducing.front()]))) {
    auto& unit = units[reducing.front()];
    unit.finish_leaving();  // one unit's gradient is on its way to the host at a time
    unit.finish_reduce(divide_factor);
    if (is_last) unit.start_replicate();
    const bool frees = options.fp8_gradients || options.offload.gradients_on_drives;
    if (is_last && frees) unit.finish_replicas();
    if (options.update_in_backward) update(reducing.front());
    note_memory(reducing.front());
    reducing.pop_front();
  }
}

void DataParallel::Engine::start_reductions() {
  if (!requires_sync || std::exchange(started, true)) return;
  if (const auto before = reduces_after.lock()) before->start_reductions();
  check_all_ran();
  while (launched < order.size()) launch_next();
}

void DataParallel::Engine::finish_backward() {
  if (!requires_sync) return;
  start_reductions();
  settle(0);
  if (leaves_taken) agree_on_arrivals();
  for (const size_t index : order) {
    if (calls[index].again) launch(index);
  }
  settle(0);
  for (auto& unit : units) {
    unit.finish_coming();  // of a unit that was not called: the optimizer writes slices
    unit.finish_leaving();
    if (is_last && !options.update_in_backward) unit.finish_replicate();
  }
  launched = 0;
  started = false;
  for (auto& state : calls) {
    state.done = state.launched = state.again = false;
    state.forward.clear();
    state.running = state.in_backward = 0;
  }
  has_gradients = true;
  if (!order_known) agree_on_order();
  forwarded.clear();
  if (slices_taken) check_frozen();
  if (!leaves_taken) return;
  give_leaves_gradients();
  if (num_steps > 0) return;
  // A loop that forgets finish_step() does so in its first step.
  for (auto& unit : units) unit.keep_samples(/*apart=*/false);
}

void DataParallel::Engine::check_step_ended(const Unit& unit, bool ended, const char* before) {
  TORCH_CHECK_VALUE(
      ended, "unit ", unit.name(),
      ": its slices were written; expected finish_step() after the optimizer's step (with an "
      "Accelerator: step() of the optimizer that prepare() gave; after other writing: "
      "values_changed()) before ",
      before);
}

/// An optimizer over slices() would move what was frozen after the sharding.
void DataParallel::Engine::check_frozen() const {
  for (const auto& leaf : leaves) {
    const auto& buffer = units[leaf.unit].buffers()[leaf.buffer];
    TORCH_CHECK_VALUE(!buffer.trained() || buffer.entries()[leaf.entry].parameter.requires_grad(),
                      leaf.name,
                      ": expected an optimizer over parameters(), as slices() do not "
                      "change; freeze it before sharding");
  }
}

/// Hooks see calls through a module's holder alone. A unit whose gradients came without would be
/// out of date, or lose them.
void DataParallel::Engine::check_all_ran() {
  for (size_t i = 0; i < units.size(); ++i) {
    if (!calls[i].ran) units[i].fill_gradient();
    for (const auto& buffer : units[i].buffers()) {
      auto stray = buffer.stray_gradient();
      if (!stray && !calls[i].ran && units[i].sharded() && buffer.trained() &&
          buffer.gradient.allocated() && buffer.gradient.tensor().any().item<bool>()) {
        stray = buffer.entries().front().name;
      }
      TORCH_CHECK_VALUE(!stray, *stray, ": expected its unit ", units[i].name(),
                        " to be called through its holder, got a gradient from elsewhere; call "
                        "module(x) of a tessera::nn::Hooked, not module->forward(x) or one inside "
                        "of torch::nn::Sequential; a penalty on its weights needs the call, too");
    }
  }
}

/// In two steps nobody asked for what an optimizer updates: it was made of the module's parameters,
/// which are not what is updated.
void DataParallel::Engine::check_has_optimizer() const {
  if (slices_taken || leaves_taken || !has_gradients || num_steps == 0) return;
  const auto is_slice = [](const auto& buffer) { return buffer.plan().slice_in_whole; };
  const auto is_plain = [&](const auto& unit) {
    return !unit.sharded() && std::ranges::all_of(unit.buffers(), is_slice);
  };
  TORCH_CHECK_VALUE(
      std::ranges::all_of(units, is_plain),
      "finish_step: nothing was updated in two steps; make the optimizer of the sharded "
      "model's parameters()");
}

bool DataParallel::Engine::backward_is_open() const {
  return requires_sync &&
         (launched > 0 || std::ranges::any_of(calls, [](const auto& state) { return state.done; }));
}

}  // namespace tessera::parallel
