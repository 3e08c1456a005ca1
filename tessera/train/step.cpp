#include "tessera/train/step.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/kernels/to_device.h"
#include "tessera/memory/device_memory.h"
#include "tessera/optim/norm.h"
#include "tessera/report/fp8_rounding.h"
#include "tessera/train/forward_backward.h"
#include "tessera/train/memory_and_traffic.h"
#include "tessera/train/preference.h"

namespace tessera::train {
namespace {

/// Sums over the ranks of `axis`, in double.
std::vector<double> summed(const mesh::Axis& axis, const std::vector<double>& values) {
  auto tensor = torch::tensor(values, torch::kFloat64);
  axis.all_reduce(tensor, comm::ReduceOp::sum).wait();
  return {tensor.const_data_ptr<double>(), tensor.const_data_ptr<double>() + values.size()};
}

/// Sums of all ranks. Those that have the head of a divided model have the same.
PreferenceSums over_ranks(const Run& run, const PreferenceSums& own) {
  const auto values = run.tensor_axis.rank() == 0 ? own.values() : PreferenceSums().values();
  return PreferenceSums::of(summed(run.world, values));
}

/// Collective where there are pairs.
std::vector<report::Figure> figures_of_all(const Run& run, const PreferenceSums& own) {
  const auto loss = run.config.preference.loss;
  if (loss == PreferenceLoss::none) return {};
  return figures_of(over_ranks(run, own), loss);
}

BatchLoss by_token(double scale) {
  return [scale](const data::Batch&) { return kernels::TokenLoss(scale); };
}

/// What a batch is learned by: its tokens, each times `scale` / tokens, or its pairs (then adding to `sums`).
BatchLoss loss_by(const Run& run, const Amounts& amounts, double scale,
                  const std::shared_ptr<const std::vector<double>>& reference,
                  PreferenceSums& sums) {
  const auto& section = run.config.preference;
  if (section.loss == PreferenceLoss::none) return by_token(scale / amounts.tokens);
  TORCH_INTERNAL_ASSERT(reference || !has_reference(section.loss), "prepare_reference first");
  return [&section, amounts, scale, reference, &sums](const data::Batch& batch) {
    return preference_loss(section, batch, amounts, scale, reference, sums);
  };
}

/// What the micro-batches of all ranks hold; `batches` are this rank's.
Amounts amounts_of(const Run& run, const std::vector<data::Batch>& batches) {
  Amounts own;
  for (const auto& batch : batches) own.add(batch);
  const auto all =
      summed(run.data_axis, {own.tokens, own.pairs, own.chosen_tokens, own.positions, own.rows});
  return {.tokens = all[0],
          .pairs = all[1],
          .chosen_tokens = all[2],
          .positions = all[3],
          .rows = all[4]};
}

/// The unit in whose output NaN or infinity first appears, found by running the step's forward once
/// more; if all outputs are finite, the one in whose gradient it does.
std::string first_nonfinite_unit(Run& run, const std::vector<data::Batch>& batches,
                                 const parallel::GradientNorm& norm) {
  run.parallel.watch_outputs(true);
  loss_sum(run, batches, by_token(1));
  run.parallel.watch_outputs(false);
  const auto unit = run.parallel.first_nonfinite_output();
  return unit.empty() ? norm.nonfinite_unit : unit;
}

void add_balance(BalanceResult balance, StepResult& result) {
  std::ranges::move(balance.figures, std::back_inserter(result.figures));
  result.experts = std::move(balance.layers);
}

void add_fp8(Fp8Step fp8, StepResult& result) {
  std::ranges::move(report::fp8_figures(fp8.layers), std::back_inserter(result.figures));
  result.fp8 = std::move(fp8.layers);
  result.without_scale = std::move(fp8.without_scale);
}

/// The step's update is made by its backward.
void update_in_backward(Run& run, int64_t step) {
  run.optimizer.begin_step();
  const double rate = optim::learning_rate(run.learning_rate, step);
  run.parallel.on_reduced([&run, rate](size_t slice) { run.optimizer.update(slice, rate); });
}

}  // namespace

std::vector<data::Batch> micro_batches(const Run& run, const data::Loader& loader, int64_t step) {
  const auto rows = loader.rows();
  const int64_t count = run.pipeline.schedule().num_micro_batches;
  std::vector<data::Batch> batches;
  for (int64_t i = 0; i < count; ++i) {
    auto batch = loader.batch(step, rows.begin + rows.size() * i / count,
                              rows.begin + rows.size() * (i + 1) / count);
    batch.inputs = kernels::to_device(batch.inputs, run.device);
    batch.targets = kernels::to_device(batch.targets, run.device);
    batches.push_back(std::move(batch));
  }
  return batches;
}

StepResult train_step(Run& run, int64_t step) {
  return train_step(run, step, micro_batches(run, run.train_loader, step));
}

StepResult train_step(Run& run, int64_t step, const std::vector<data::Batch>& batches) {
  const auto amounts = amounts_of(run, batches);
  if (amounts.tokens == 0)
    user_error("step {}: expected targets to predict, found none in the whole batch", step + 1);
  memory::reset_peak(run.device);
  const auto before = traffic_so_far(run);
  const auto drives_before = drives_so_far(run);
  begin_fp8_step(run, step);

  const double loss_scale = run.loss_scaler ? run.loss_scaler->scale() : 1;
  if (run.config.optimizer.in_backward) update_in_backward(run, step);
  if (run.balance) run.balance->begin_step({amounts.positions, amounts.rows, loss_scale});
  PreferenceSums of_pairs;
  const auto losses = accumulate_gradients(
      run, step, batches, loss_by(run, amounts, loss_scale, run.reference.train, of_pairs));
  const auto norm = run.parallel.gradient_norm();
  const double local_loss = losses.item<double>() / loss_scale;
  for (const auto& axis : run.axes) axis.check();  // the host has waited for all of them
  const auto requests = run.requests();
  const bool counts = run.tensor_axis.rank() == 0;  // others have the same loss
  const auto sums = summed(
      run.world, {counts ? local_loss : 0, static_cast<double>(requests.save),
                  static_cast<double>(requests.stop), static_cast<double>(requests.lost_data)});
  StepResult result{
      .loss = sums[0],
      .figures = figures_of_all(run, of_pairs),
      .grad_norm = norm.norm / loss_scale,
      .learning_rate = optim::learning_rate(run.learning_rate, step),
      .num_tokens = static_cast<int64_t>(amounts.tokens),
      .requests = {.save = sums[1] > 0, .stop = sums[2] > 0, .lost_data = sums[3] > 0}};
  if (result.requests.lost_data) {
    result.skipped = true;
    run.parallel.finish_step();
    return result;
  }
  if (step == 0 && run.config.train.report_unused_parameters) {
    result.parameters_without_gradient = run.parallel.parameters_without_gradient();
  }
  result.skipped = !norm.nonfinite_unit.empty() || !std::isfinite(result.loss);
  if (run.balance) add_balance(run.balance->finish_step(result.skipped), result);
  if (run.loss_scaler) run.loss_scaler->update(result.skipped);
  if (result.skipped) {
    // Where the loss is finite, outputs are: the backward overflowed (fp16's scale, mostly).
    result.nonfinite_unit =
        std::isfinite(result.loss) ? norm.nonfinite_unit : first_nonfinite_unit(run, batches, norm);
  } else if (!run.config.optimizer.in_backward) {
    const double scale = optim::clip_factor(result.grad_norm, run.config.optimizer.max_grad_norm);
    run.optimizer.step(result.learning_rate, scale / loss_scale);
  }
  add_fp8(finish_fp8_step(run, step, result.skipped), result);
  run.parallel.finish_step();
  run.peak_tensors = std::max(run.peak_tensors, memory::device_memory(run.device).peak_tensors);
  if (!result.skipped) run.traffic = traffic_so_far(run) - before;
  if (drives_before) count_drives(run, *drives_so_far(run) - *drives_before);
  return result;
}

std::optional<ValidationResult> validate(Run& run) {
  if (!run.validation_loader) return std::nullopt;
  const auto preference = run.config.preference.loss;
  const int64_t num_batches =
      std::min(run.config.train.validation_batches, run.validation_loader->num_batches());
  double local_loss = 0, local_tokens = 0;
  PreferenceSums of_pairs;
  // Sums, which are divided once all are known.
  const Amounts one{.tokens = 1, .pairs = 1, .chosen_tokens = 1};
  const auto loss = loss_by(run, one, 1, run.reference.validation, of_pairs);
  for (int64_t step = 0; step < num_batches; ++step) {
    const auto batches = micro_batches(run, *run.validation_loader, step);
    local_loss += loss_sum(run, batches, loss);
    if (!run.pipeline.has_last_stage()) continue;
    for (const auto& batch : batches) local_tokens += static_cast<double>(batch.num_tokens);
  }
  const auto sums = summed(run.world, {local_loss, local_tokens});
  if (sums[1] == 0) return std::nullopt;
  ValidationResult result{.loss = sums[0] / sums[1], .figures = {}};
  if (preference != PreferenceLoss::none) {
    const auto all = over_ranks(run, of_pairs);
    result = {.loss = loss_of(all, preference), .figures = figures_of(all, preference)};
  }
  std::ranges::move(answer_questions(run), std::back_inserter(result.figures));
  return result;
}

}  // namespace tessera::train
