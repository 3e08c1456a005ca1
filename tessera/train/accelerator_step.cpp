// What an Accelerator does from a forward to the update.
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>

#include "tessera/optim/norm.h"
#include "tessera/parallel/data/buffer_sync.h"
#include "tessera/train/accelerator_core.h"
#include "tessera/train/engine_options.h"

namespace tessera {

// ---- accumulation ------------------------------------------------------------------------------

std::shared_ptr<LoaderPass> AcceleratorCore::begin_pass() {
  auto pass = std::make_shared<LoaderPass>();
  passes_.push_back(pass);
  return pass;
}

std::shared_ptr<LoaderPass> AcceleratorCore::pass() {
  while (!passes_.empty() && passes_.back().expired()) passes_.pop_back();
  return passes_.empty() ? nullptr : passes_.back().lock();
}

void AcceleratorCore::set_accumulation_steps(int64_t steps) {
  TORCH_CHECK_VALUE(steps > 0, "gradient_accumulation_steps: expected at least 1, got ", steps);
  accumulation_steps_ = steps;
  for (const auto& model : models_) tell_heads(*model->root);
}

void AcceleratorCore::begin_micro_batch() {
  const auto in_pass = pass();
  if (options_.sync_with_loader && in_pass && in_pass->at_end) {
    micro_batch_ = 0;
    sync_gradients_ = true;
    return;
  }
  ++micro_batch_;
  sync_gradients_ = micro_batch_ % accumulation_steps_ == 0;
}

// ---- forward and backward ----------------------------------------------------------------------

// Note [Buffers]. As DDP does, rank 0's are sent before a forward whose last one was to be
// synchronised, so between the micro-batches of an update each rank goes on with its own.
void AcceleratorCore::before_forward(ModelRecord& model) {
  if (!model.send_buffers || !options_.broadcast_buffers || joining_) return;
  if (distributed_type() == "FSDP" || distributed_type() == "DEEPSPEED") return;
  parallel::synchronise(model.parallel.named_buffers(), parallel::BufferSync::broadcast, axis_);
}

void AcceleratorCore::after_forward(ModelRecord& model) const {
  model.send_buffers = torch::GradMode::is_enabled() && sync_gradients_ && !local_;
}

void AcceleratorCore::check_steps() const {
  for (const auto& model : models_) {
    const auto done = std::ranges::count_if(model->optimizers, [](auto* of) { return of->done; });
    TORCH_CHECK_VALUE(!model->has_gradients || done == 0,
                      "backward: expected step() or zero_grad() of every optimizer of a model "
                      "between a step and the next backward, got ",
                      done, " of ", model->optimizers.size());
  }
  const auto in_pass = passes_.empty() ? nullptr : passes_.back().lock();
  TORCH_CHECK_VALUE(joining_ || axis_.size() == 1 || !in_pass || in_pass->on_all_ranks,
                    "backward: this batch is the last one and other ranks have none (even_batches "
                    "is false); train inside of join_uneven_inputs(), or with even_batches");
}

/// There, gradients of steps without zero_grad() add up, mostly by mistake: none is to step with such. A zero_grad() may
/// still come, as a discriminator's does behind the generator's backward.
void AcceleratorCore::note_added_up() {
  const auto has_gradient = [](const torch::Tensor& parameter) {
    return parameter.grad().defined();
  };
  for (auto& optimizer : optimizers_) {
    for (const auto& group : optimizer->base->param_groups()) {
      const bool has_any = std::ranges::any_of(group.params(), has_gradient);
      optimizer->added_up |= optimizer->stepped && has_any;
    }
  }
}

void AcceleratorCore::backward(const torch::Tensor& loss) {
  TORCH_CHECK_VALUE(!models_.empty(), "backward: expected a model from prepare(), got none");
  TORCH_CHECK_VALUE(loss.defined() && loss.requires_grad(),
                    "backward: expected a loss of a model's parameters, got ",
                    loss.defined() ? "a tensor without a gradient" : "an undefined tensor");
  check_steps();
  if (joining_ && sync_gradients_) join_backward();
  const bool reduces =
      (sync_gradients_ || parallel::frees_gradients(config_.parallel.placement)) && !local_;
  for (auto& model : models_) {
    model->parallel.set_requires_gradient_sync(reduces);
    model->parallel.set_is_last_backward(sync_gradients_);
    model->has_gradients = true;
    model->num_forwards = 0;
  }
  for (auto& optimizer : optimizers_) optimizer->done = false;
  const double scale = scaler_ ? scaler_->scale() : 1;
  const double factor = scale / static_cast<double>(accumulation_steps_);
  (factor == 1 ? loss : loss * factor).backward();
  for (auto& model : models_) model->parallel.finish_backward();
  if (local_ && sync_gradients_) give_local_gradients();
  if (sync_gradients_) note_added_up();
  ++num_micro_batches_;
}

// ---- gradients ---------------------------------------------------------------------------------

double AcceleratorCore::gradient_norm(const OptimizerRecord& optimizer) const {
  double squares = 0;
  for (const auto index : optimizer.models) {
    const auto found = models_[index]->parallel.gradient_norm();
    if (!found.nonfinite_unit.empty()) return std::numeric_limits<double>::infinity();
    squares += found.norm * found.norm;
  }
  return std::sqrt(squares);
}

void AcceleratorCore::unscale(OptimizerRecord& optimizer) {
  if (!scaler_ || optimizer.unscaled) return;
  for (const auto index : optimizer.models) {
    models_[index]->parallel.scale_gradients(1 / scaler_->scale());
  }
  optimizer.unscaled = true;
}

std::vector<std::pair<torch::Tensor, bool>> AcceleratorCore::gradients_of(
    const std::vector<torch::Tensor>& parameters) const {
  std::unordered_set<const void*> wanted;
  for (const auto& parameter : parameters) wanted.insert(parameter.unsafeGetTensorImpl());
  std::vector<std::pair<torch::Tensor, bool>> gradients;
  if (!sync_gradients_ || local_) {  // this rank's own, as autograd left them
    for (const auto& parameter : parameters) {
      if (!replicates() || !parameter.grad().defined()) continue;
      // data(): a change of its own, which is no sign that a loss reached the parameter.
      gradients.emplace_back(parameter.grad().data(), true);
    }
    return gradients;
  }
  for (const auto& model : models_) {
    const auto whole = model->root->named_parameters();
    const auto leaves = model->parallel.named_parameters();
    const auto parts = model->parallel.parts();
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto& leaf = leaves[i];
      if (!wanted.contains(whole[leaf.key()].unsafeGetTensorImpl())) continue;
      if (leaf.value().grad().defined()) {
        gradients.emplace_back(leaf.value().grad(), parts[i].replica == 0);
      }
    }
  }
  return gradients;
}

double AcceleratorCore::clip_grad_norm(const std::vector<torch::Tensor>& parameters,
                                       double max_norm, double norm_type) {
  TORCH_CHECK_VALUE(max_norm > 0, "clip_grad_norm_: expected a norm above 0, got ", max_norm);
  TORCH_CHECK_VALUE(sync_gradients_ || !scaler_,
                    "clip_grad_norm_: gradients of fp16 are clipped once before an update; call it "
                    "where sync_gradients() is true");
  for (auto& optimizer : optimizers_) unscale(*optimizer);
  const torch::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  const bool of_maximum = std::isinf(norm_type);
  double sum = 0;
  for (const auto& [gradient, counted] : gradients) {
    if (!counted || gradient.numel() == 0) continue;
    const double own =
        at::linalg_vector_norm(gradient, norm_type, std::nullopt, false, torch::kFloat64)
            .item<double>();
    sum = of_maximum ? std::max(sum, own) : sum + std::pow(own, norm_type);
  }
  if (sync_gradients_ && !local_) {
    const auto total = torch::tensor(sum, torch::kFloat64);
    axis_.all_reduce(total, of_maximum ? comm::ReduceOp::max : comm::ReduceOp::sum).wait();
    sum = total.item<double>();
  }
  const double norm = of_maximum ? sum : std::pow(sum, 1 / norm_type);
  const double factor = optim::clip_factor(norm, max_norm);
  if (factor != 1) {
    for (const auto& [gradient, counted] : gradients) gradient.mul_(factor);
  }
  return norm;
}

void AcceleratorCore::clip_grad_value(const std::vector<torch::Tensor>& parameters,
                                      double clip_value) {
  TORCH_CHECK_VALUE(distributed_type() != "FSDP" && distributed_type() != "DEEPSPEED",
                    "clip_grad_value_: expected DDP or one process, got ", distributed_type(),
                    "; use clip_grad_norm_");
  for (auto& optimizer : optimizers_) unscale(*optimizer);
  const torch::NoGradGuard no_grad;
  for (const auto& [gradient, counted] : gradients_of(parameters)) {
    gradient.clamp_(-clip_value, clip_value);
  }
}

// ---- the update --------------------------------------------------------------------------------

void AcceleratorCore::step(OptimizerRecord& optimizer,
                           const std::function<torch::Tensor()>& closure) {
  optimizer.skipped = false;
  if (!sync_gradients_) return;
  adopt_parameters(optimizer);
  for (const auto index : optimizer.models) {
    TORCH_CHECK_VALUE(!models_[index]->parallel.backward_is_open(),
                      "step: expected accelerator.backward(loss), got loss.backward(), after which "
                      "gradients are not averaged");
  }
  const bool searches = dynamic_cast<torch::optim::LBFGS*>(optimizer.base) != nullptr;
  if (closure && !searches) {  // what others do with it: call it once, at first
    const torch::AutoGradMode grad_mode(true);
    closure();
  }
  TORCH_CHECK_VALUE(!optimizer.added_up,
                    "step: expected zero_grad() of the optimizer between its last step() and a "
                    "backward; gradients do not add up over steps");
  if (clip_always_ > 0) {
    std::vector<torch::Tensor> all;
    for (const auto& model : models_) {
      std::ranges::move(model->root->parameters(), std::back_inserter(all));
    }
    clip_grad_norm(all, clip_always_, 2);
  }
  if (scaler_) {
    unscale(optimizer);
    optimizer.skipped = !std::isfinite(gradient_norm(optimizer));
    scaler_->update(optimizer.skipped);
    optimizer.unscaled = false;
  }
  for (const auto& axis : mesh_->used_axes()) axis.check();
  if (searches) {
    TORCH_CHECK_VALUE(closure != nullptr, "step: LBFGS expects step(closure), got step()");
    // All ranks see one loss, so all search alike.
    optimizer.base->step([&] { return reduce(closure(), "mean"); });
  } else if (!optimizer.skipped) {
    optimizer.base->step();
  }
  optimizer.stepped = true;
  finish_step(optimizer, /*updated=*/true);
  ++num_steps_;
}

void AcceleratorCore::finish_step(OptimizerRecord& optimizer, bool updated) {
  optimizer.done = true;
  for (const auto index : optimizer.models) {
    auto& model = *models_[index];
    model.updated |= updated;
    const bool all = std::ranges::all_of(model.optimizers, [](auto* of) { return of->done; });
    if (!all || !std::exchange(model.has_gradients, false)) continue;
    // zero_grad() may stand between a forward and its backward.
    const bool goes_on = !std::exchange(model.updated, false) && model.parallel.forward_is_open();
    goes_on ? model.parallel.drop_gradients() : model.parallel.finish_step();
  }
}

void AcceleratorCore::zero_grad(OptimizerRecord& optimizer) {
  if (!sync_gradients_) return;
  optimizer.stepped = optimizer.added_up = optimizer.unscaled = false;
  finish_step(optimizer, /*updated=*/false);
}

void AcceleratorCore::set_training(OptimizerRecord& optimizer, bool training) {
  if (!optimizer.set_training) return;
  optimizer.set_training(training);
  for (const auto index : optimizer.models) models_[index]->parallel.values_changed();
}

bool AcceleratorCore::any_skipped() const {
  return std::ranges::any_of(optimizers_, [](const auto& record) { return record->skipped; });
}

std::unique_ptr<precision::Autocast> AcceleratorCore::autocast() const {
  if (!autocast_) return nullptr;
  return std::make_unique<precision::Autocast>(*autocast_, mesh_->device().type());
}

torch::Tensor AcceleratorCore::cast_input(const torch::Tensor& input) const {
  const auto& precision = config_.precision;
  const bool cast = precision.computes_in_half();
  if (!cast || !input.defined() || !input.is_floating_point()) return input;
  return input.to(train::torch_dtype(precision.compute));
}

}  // namespace tessera
