// What ends a step, and units that are updated as soon as their gradients are reduced.
#include <vector>

#include "tessera/kernels/flat.h"
#include "tessera/parallel/data/engine.h"

namespace tessera::parallel {

torch::Tensor DataParallel::Engine::sum_of_squares(size_t index) const {
  const auto& unit = units[index];
  torch::Tensor sum;
  for (const auto& buffer : unit.buffers()) {
    // Where several ranks of `axes.model` hold it whole, the first one counts it.
    const bool first =
        buffer.options().of_experts ? axes.experts.gather.rank() == 0 : axes.first_copy;
    const bool sliced = buffer.plan().num_slices > 1;
    const bool first_of_like = buffer.options().replication.ranks.rank() == 0;
    if (!buffer.trained() || !first_of_like || !(sliced || first)) continue;
    const auto squares = buffer.gradient_is_away()
                             ? torch::tensor(buffer.squares_put_away(), torch::kFloat64)
                             : kernels::sum_of_squares(buffer.gradient_numbers().contiguous());
    sum = sum.defined() ? sum + squares : squares;
  }
  return sum.defined() ? sum : torch::zeros({}, torch::kFloat64);
}

/// The unit's gradient is complete: its slices are updated, and it goes.
void DataParallel::Engine::update(size_t index) {
  TORCH_CHECK_VALUE(
      on_reduced && is_last,
      "expected on_reduced() before a backward that updates, and one backward a step");
  const torch::NoGradGuard no_grad;
  units[index].finish_replicate();
  note_memory(index);
  squares[index] = sum_of_squares(index);
  const auto [first, end] = slices_of_unit[index];
  for (size_t slice = first; slice < end; ++slice) on_reduced(slice);
  units[index].forget_gradients();
  calls[index].updated = true;
}

void DataParallel::Engine::check_not_updated(size_t index) const {
  TORCH_CHECK_VALUE(!calls[index].updated, "unit ", units[index].name(),
                    ": expected one backward between steps, as its weights were updated in it; got "
                    "another");
}

void DataParallel::Engine::check_backward_ended() const {
  TORCH_CHECK_VALUE(launched == 0,
                    "finish_step: expected finish_backward() after a backward, even if its "
                    "gradients are dropped");
}

void DataParallel::Engine::drop_gradients() {
  check_backward_ended();
  has_gradients = false;
  for (auto& leaf : leaves) leaf.tensor.mutable_grad().reset();
  for (size_t i = 0; i < units.size(); ++i) {
    units[i].forget_gradients();
    note_memory(i);
  }
}

void DataParallel::Engine::finish_step() {
  check_backward_ended();
  for (auto& unit : units) unit.check_written(/*reduced=*/true);
  check_has_optimizer();
  for (auto& unit : units) {
    for (auto& buffer : unit.buffers()) buffer.end_graphs(/*all=*/!leaves_taken);
  }
  drop_gradients();
  ++num_steps;
  unsharded = amax_is_shared = stepped = false;
  for (auto& state : calls) state = {};
  forwarded.clear();
  for (size_t i = 0; i < units.size(); ++i) {
    units[i].parameters_changed(/*frozen_ones=*/false);
    note_memory(i);
  }
  finish_regions();
  synchronise(module_buffers, options.buffers, axes.all);
}

}  // namespace tessera::parallel
