#include "tessera/train/step.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/optim/norm.h"

namespace tessera::train {
namespace {

/// Sums over the ranks of `axis`, in double.
std::vector<double> summed(const mesh::Axis& axis, const std::vector<double>& values) {
  auto tensor = torch::tensor(values, torch::kFloat64);
  axis.all_reduce(tensor, comm::ReduceOp::sum).wait();
  return {tensor.const_data_ptr<double>(), tensor.const_data_ptr<double>() + values.size()};
}

double gradient_norm(const parallel::Replicated& replicated) {
  std::vector<torch::Tensor> gradients;
  for (const auto& buffer : replicated.buffers()) gradients.push_back(buffer.gradient());
  return std::sqrt(optim::squared_norm(gradients));
}

}  // namespace

std::vector<data::Batch> micro_batches(const Run& run, const data::Loader& loader, int64_t step) {
  const auto rows = loader.rows();
  const int64_t size =
      run.config.train.micro_batch > 0 ? run.config.train.micro_batch : rows.size();
  std::vector<data::Batch> batches;
  for (int64_t row = rows.begin; row < rows.end; row += size) {
    batches.push_back(loader.batch(step, row, std::min(row + size, rows.end)));
  }
  return batches;
}

StepResult train_step(Run& run, int64_t step) {
  return train_step(run, step, micro_batches(run, run.train_loader, step));
}

StepResult train_step(Run& run, int64_t step, const std::vector<data::Batch>& batches) {
  double local_tokens = 0;
  for (const auto& batch : batches) local_tokens += static_cast<double>(batch.num_tokens);
  const double num_tokens = summed(run.data_axis, {local_tokens})[0];
  if (num_tokens == 0)
    user_error("step {}: expected targets to predict, found none in the whole batch", step + 1);

  double local_loss = 0;
  for (const auto& batch : batches) {
    run.replicated.set_requires_gradient_sync(&batch == &batches.back());
    const auto loss = run.model->loss(batch.inputs, batch.targets, 1 / num_tokens);
    loss.backward();
    local_loss += loss.item<double>();
  }
  run.replicated.finish_backward();

  StepResult result{.loss = summed(run.data_axis, {local_loss})[0],
                    .grad_norm = gradient_norm(run.replicated),
                    .learning_rate = optim::learning_rate(run.schedule, step),
                    .num_tokens = static_cast<int64_t>(num_tokens)};
  if (step == 0 && run.config.train.report_unused_parameters) {
    result.parameters_without_gradient = run.replicated.parameters_without_gradient();
  }
  const double limit = run.config.optimizer.max_grad_norm;
  const double scale = limit > 0 ? std::min(1.0, limit / (result.grad_norm + 1e-6)) : 1.0;
  run.optimizer.step(result.learning_rate, scale);
  run.replicated.zero_gradients();
  return result;
}

std::optional<double> validation_loss(Run& run) {
  if (!run.validation_loader) return std::nullopt;
  const torch::NoGradGuard no_grad;
  const int64_t num_batches =
      std::min(run.config.train.validation_batches, run.validation_loader->num_batches());
  double local_loss = 0, local_tokens = 0;
  for (int64_t step = 0; step < num_batches; ++step) {
    for (const auto& batch : micro_batches(run, *run.validation_loader, step)) {
      local_loss += run.model->loss(batch.inputs, batch.targets, 1.0).item<double>();
      local_tokens += static_cast<double>(batch.num_tokens);
    }
  }
  const auto sums = summed(run.data_axis, {local_loss, local_tokens});
  if (sums[1] == 0) return std::nullopt;
  return sums[0] / sums[1];
}

}  // namespace tessera::train
