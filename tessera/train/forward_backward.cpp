#include "tessera/train/forward_backward.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "tessera/memory/device_memory.h"
#include "tessera/nn/dropout.h"
#include "tessera/precision/autocast.h"
#include "tessera/train/engine_options.h"

namespace tessera::train {
namespace {

using schedule::Action;
using schedule::Kind;

/// Under sequence parallelism all positions go to the head, not the one that is asked for.
bool has_part_of_positions(const Run& run) {
  return run.tensor_axis.size() > 1 && run.config.parallel.sequence_parallel;
}

/// One stage's part of the model: `hidden` is what the stage before returned. Returns the loss, or
/// without targets the logits (of `at` alone, if it is given), in the last stage.
torch::Tensor forward_stage(Run& run, int stage, torch::Tensor hidden, const data::Batch& batch,
                            const BatchLoss& loss, std::optional<TextPosition> at = {}) {
  const auto [begin, end] = run.plan.pipeline.layers_of(stage);
  const models::RowLayout rows{.seq_len = batch.inputs.size(1),
                               .first_position = at ? at->first_position : 0,
                               .documents = batch.documents};
  if (stage == 0) hidden = run.model->embed(batch.inputs, rows);
  hidden = run.model->run_layers(std::move(hidden), begin, end, rows);
  const bool last = stage + 1 == run.plan.pipeline.schedule.num_stages;
  if (last && at && !has_part_of_positions(run)) hidden = hidden.narrow(1, at->position, 1);
  if (!last) return hidden;
  return run.model->head(hidden, batch.targets, loss ? loss(batch) : kernels::TokenLoss());
}

/// Bytes in tensors of this process, but for what the engine accounts for itself.
int64_t held_bytes(const Run& run) {
  const auto memory = run.parallel.memory();
  return memory::device_memory(run.device).tensors - memory.gathered - memory.gradients;
}

torch::Tensor sum_of(const std::vector<torch::Tensor>& losses) {
  return losses.empty() ? torch::zeros({}, torch::kFloat64)
                        : torch::stack(losses).detach().sum(torch::kFloat64);
}

/// In force while it lives; nullptr: the run has none.
std::unique_ptr<precision::Autocast> autocast_of(const Run& run) {
  if (!run.autocast) return nullptr;
  return std::make_unique<precision::Autocast>(*run.autocast, run.device.type());
}

/// What each micro-batch of a step draws random numbers from.
std::vector<nn::RandomContext> random_contexts(const Run& run, int64_t step,
                                               const std::vector<data::Batch>& batches) {
  std::vector<nn::RandomContext> contexts;
  int64_t first_row = run.train_loader.rows().begin;
  for (const auto& batch : batches) {
    contexts.push_back({.seed = static_cast<uint64_t>(run.config.model.seed),
                        .step = step,
                        .first_row = first_row});
    first_row += batch.inputs.size(0);
  }
  return contexts;
}

/// The sum of what the head returns for `batches`, without gradients. `contexts`: of a training forward; empty: of
/// one that nothing is learned from.
double loss_sum_in(Run& run, const std::vector<data::Batch>& batches, const BatchLoss& loss,
                   const std::vector<nn::RandomContext>& contexts) {
  const auto autocast = autocast_of(run);
  const auto losses = run.pipeline.evaluate(
      [&](int stage, int micro_batch, torch::Tensor hidden) {
        const auto index = static_cast<size_t>(micro_batch);
        std::optional<nn::RandomContext> context;
        if (!contexts.empty()) context = contexts[index];
        const nn::RandomScope random(context);
        run.parallel.begin_pass(stage, micro_batch);
        return forward_stage(run, stage, std::move(hidden), batches[index], loss);
      },
      static_cast<int>(batches.size()));
  return sum_of(losses).item<double>();
}

/// A forward without gradients that tells what a loss of the whole batch's counts needs, where its
/// backward begins before its last forward. It draws and drops what the step's own will.
void count_first(Run& run, const std::vector<data::Batch>& batches,
                 const std::vector<nn::RandomContext>& contexts) {
  const bool at_once = batches.size() == 1 && run.pipeline_axis.size() == 1;
  if (!run.balance || !run.balance->needs_counts() || at_once) return;
  loss_sum_in(
      run, batches, [](const data::Batch&) { return kernels::TokenLoss(1); }, contexts);
  run.balance->know_counts();
  run.balance->count_anew();
}

/// Tells data parallelism which pass comes next, and whether its backward is to be reduced: for
/// placements that free whole gradients every one, but in a pipeline, where several micro-batches
/// are under way, the last one of each stage alone.
void prepare(Run& run, const Action& action) {
  const bool each = config::reduces_each(run.config) && run.plan.pipeline.schedule.num_stages == 1;
  // What the backward before this forward started.
  if (each && action.kind == Kind::forward && action.micro_batch > 0)
    run.parallel.finish_backward();
  const bool completes = run.pipeline.completes_gradients(action);
  run.parallel.begin_pass(action.stage, action.micro_batch);
  run.parallel.set_requires_gradient_sync(each || completes);
  run.parallel.set_is_last_backward(completes);
}

}  // namespace

torch::Tensor accumulate_gradients(Run& run, int64_t step, const std::vector<data::Batch>& batches,
                                   const BatchLoss& loss) {
  const auto contexts = random_contexts(run, step, batches);
  count_first(run, batches, contexts);
  const auto autocast = autocast_of(run);
  const auto before = held_bytes(run);
  const auto forward = [&](int stage, int micro_batch, torch::Tensor hidden) {
    const auto index = static_cast<size_t>(micro_batch);
    const nn::RandomScope random(contexts[index]);
    auto result = forward_stage(run, stage, std::move(hidden), batches[index], loss);
    run.peak_activations = std::max(run.peak_activations, held_bytes(run) - before);
    return result;
  };
  const auto losses = run.pipeline.train(forward, [&](const Action& action) {
    prepare(run, action);
    if (run.balance && action.kind != Kind::forward) run.balance->know_counts();
    run.watch_action(action);
  });
  run.parallel.set_requires_gradient_sync(true);
  run.parallel.set_is_last_backward(true);
  run.parallel.finish_backward();
  return sum_of(losses);
}

double loss_sum(Run& run, const std::vector<data::Batch>& batches, const BatchLoss& loss) {
  return loss_sum_in(run, batches, loss, {});
}

torch::Tensor logits_at(Run& run, const torch::Tensor& ids, const TextPosition& at) {
  const data::Batch batch{
      .inputs = ids.to(run.device), .targets = torch::Tensor(), .documents = torch::Tensor()};
  const auto outputs = run.pipeline.evaluate(
      [&](int stage, int, torch::Tensor hidden) {
        return forward_stage(run, stage, std::move(hidden), batch, {}, at);
      },
      1);
  auto result = outputs.empty() ? torch::empty({ids.size(0), run.model->shape().vocab_size})
                                : outputs[0]
                                      .select(1, has_part_of_positions(run) ? at.position : 0)
                                      .to(torch::kFloat32)
                                      .cpu()
                                      .contiguous();
  run.pipeline_axis.broadcast(result, run.pipeline.schedule().rank_of_stage.back()).wait();
  return result;
}

}  // namespace tessera::train
