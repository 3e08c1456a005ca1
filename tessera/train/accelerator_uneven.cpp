// Ranks that do not do the same in each step: local SGD, and ranks that run out of batches.
#include <algorithm>

#include "tessera/train/accelerator_core.h"
#include "tessera/train/torch_states.h"

namespace tessera {

// ---- local SGD ---------------------------------------------------------------------------------

void AcceleratorCore::set_local(bool local) {
  TORCH_CHECK_VALUE(!local || replicates(), "LocalSGD: expected DDP, got ", distributed_type());
  local_ = local;
}

/// What an optimizer updates, with this rank's own gradients.
void AcceleratorCore::give_local_gradients() {
  for (auto& model : models_) {
    const auto whole = model->root->named_parameters();
    for (auto& leaf : model->parallel.named_parameters()) {
      const auto& gradient = whole[leaf.key()].grad();
      if (!leaf.value().requires_grad() || !gradient.defined()) continue;
      leaf.value().mutable_grad() = gradient.view(leaf.value().sizes());
    }
  }
}

void AcceleratorCore::average_parameters() {
  const torch::NoGradGuard no_grad;
  for (auto& model : models_) {
    for (const auto& part : model->parallel.parameters()) {
      auto values = part.detach();
      axis_.all_reduce(values).wait();
      values.div_(axis_.size());
    }
    model->parallel.values_changed();
  }
}

// ---- ranks that run out of batches -------------------------------------------------------------

// Note [Join]. Before each backward that is synchronised, ranks count those that have a batch. One
// that has none takes part in the reductions with zero gradients, so sums are over those that have,
// divided by all ranks, as in torch's Join. It does not update; at the end all take over the state
// of the last rank that had a batch, that of the optimizers, too.
void AcceleratorCore::begin_join() {
  TORCH_CHECK_VALUE(replicates(), "join_uneven_inputs: expected DDP, got ", distributed_type());
  joining_ = true;
}

void AcceleratorCore::join_backward() {
  const auto active = torch::ones({1}, torch::kInt64);
  axis_.all_reduce(active).wait();
}

void AcceleratorCore::end_join() {
  bool last = true;
  while (axis_.size() > 1) {
    const auto active = torch::zeros({1}, torch::kInt64);
    axis_.all_reduce(active).wait();
    if (active.item<int64_t>() == 0) break;
    last = false;
    for (auto& model : models_) model->parallel.set_requires_gradient_sync(true);
    for (auto& model : models_) model->parallel.finish_backward();
    for (auto& model : models_) model->parallel.finish_step();
  }
  joining_ = false;
  const auto root = torch::full({1}, last ? axis_.rank() : -1, torch::kInt64);
  axis_.all_reduce(root, comm::ReduceOp::max).wait();
  send_joined(root.item<int>());
}

void AcceleratorCore::send_joined(int root) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < models_.size(); ++i) {
    auto& model = *models_[i];
    for (auto* optimizer : model.optimizers) {
      for (const auto& group : optimizer->base->param_groups()) {
        for (const auto& leaf : group.params()) {
          auto states = train::torch_states(*optimizer->base, group, leaf, /*create=*/true);
          for (auto& [name, state] : states) axis_.broadcast(state, root).wait();
          const auto step =
              torch::full({1}, train::torch_step(*optimizer->base, leaf), torch::kInt64);
          axis_.broadcast(step, root).wait();
          train::set_torch_step(*optimizer->base, leaf, step.item<int64_t>());
        }
      }
    }
    for (const auto& leaf : model.parallel.parameters())
      axis_.broadcast(leaf.detach(), root).wait();
    for (const auto& [name, buffer] : model.parallel.named_buffers()) {
      auto values = buffer.detach().contiguous();
      axis_.broadcast(values, root).wait();
      buffer.detach().copy_(values);
    }
    model.parallel.values_changed();
  }
}

}  // namespace tessera
