#include "tessera/predict/fit.h"

#include <algorithm>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/config/fields.h"
#include "tessera/config/values.h"
#include "tessera/schedule/simulate.h"

namespace tessera::predict {
namespace {

using config::RunConfig;
using memory::CheckpointMode;
using models::ModelShape;
using parallel::Placement;

RankNeeds needs_of(const RunConfig& config, const plan::RankPlan& rank, const Device& device) {
  return {.part = rank.part,
          .memory = step_memory(config, rank, device),
          .communication = communication(config, rank),
          .drives = drive_traffic(config, rank),
          .in_flight = in_flight(config, rank.part)};
}

/// What the rank that needs the most needs.
double bytes_of(const RunConfig& config, const ModelShape& shape, const Device& device) {
  double most = 0;
  const auto plan = plan::make_plan(config, shape, {.device_is_host = device.is_host});
  for (const auto& rank : plan.ranks) {
    most = std::max(most, needs_of(config, rank, device).memory.device_bytes());
  }
  return most;
}

RunConfig with(RunConfig config, const std::vector<Setting>& settings) {
  for (const auto& [key, value] : settings) {
    config::set_field(*config::find_field(key),
                      {.kind = config::RawValue::Kind::scalar, .text = value}, key, config);
  }
  return config;
}

/// Values of `key` beyond the present one: those after it in `values`.
template <HasTexts E>
std::vector<Setting> beyond(const std::string& key, E present, const std::vector<E>& values) {
  std::vector<Setting> result;
  for (auto next = std::ranges::find(values, present) + 1; next != values.end(); ++next)
    result.emplace_back(key, text_of(*next));
  return result;
}

/// Each group holds the settings of one kind, from cheap to dear.
std::vector<std::vector<Setting>> possible_changes(const RunConfig& config, const Device& device) {
  std::vector<std::vector<Setting>> groups;
  const auto& parallel = config.parallel;
  const auto mesh = config::fitting_mesh(parallel, parallel.num_ranks);
  if (mesh.data_ranks() > 1 && parallel.dp_replicate == -1) {
    groups.push_back(beyond("parallel.placement", parallel.placement,
                            {Placement::replicate, Placement::shard_optimizer,
                             Placement::shard_gradients, Placement::full_shard}));
  }
  groups.push_back(beyond("memory.checkpointing", config.memory.checkpointing,
                          {CheckpointMode::none, CheckpointMode::selective,
                           CheckpointMode::feed_forward, CheckpointMode::full}));
  const bool offloads = parallel.offload_params != parallel::OffloadParams::none ||
                        parallel.offload_optimizer != parallel::OffloadOptimizer::none;
  if (!device.is_host && !offloads) groups.push_back({{"parallel.offload_optimizer", "true"}});
  std::vector<Setting> smaller;
  const int64_t rows = std::max<int64_t>(1, config.train.global_batch / mesh.data_ranks());
  const int64_t present = rows / config::num_micro_batches(config, mesh);
  // A pipeline's table from a file is for one number of micro-batches, updates in the backward for
  // one.
  const bool may_change =
      !parallel.pipeline_schedule.ends_with(".csv") && !config.optimizer.in_backward;
  for (int64_t size = present / 2; may_change && size >= 1; size /= 2) {
    if (present % size == 0) smaller.emplace_back("train.micro_batch", std::to_string(size));
  }
  groups.push_back(std::move(smaller));
  if (config.precision.compute == FloatType::fp32)
    groups.push_back({{"precision.compute", "bf16"}});
  if (config.optimizer.type == optim::OptimizerType::adamw &&
      config.precision.optimizer_states == optim::StateType::fp32 && mesh.tp == 1)
    groups.push_back({{"optimizer.type", "adamw8bit"}});
  return groups;
}

}  // namespace

RankEstimate estimate_rank(const RunConfig& config, const ModelShape& shape, const Device& device,
                           double limit) {
  const auto plan = plan::make_plan(config, shape, {.device_is_host = device.is_host});
  const auto trained = models::num_trained(config.adapter, shape);
  RankEstimate estimate{
      .num_ranks = config.parallel.num_ranks,
      .trained = trained,
      .parameters = models::num_parameters(shape) + models::num_of_adapter(config.adapter, shape),
      .schedule = plan.pipeline.schedule.name,
      .bubble = schedule::simulate(plan.pipeline.schedule).bubble(),
      .limit = limit};
  for (const auto& rank : plan.ranks) {
    estimate.pipeline.push_back(needs_of(config, rank, device));
    const auto& needs = estimate.pipeline.back().memory;
    if (needs.device_bytes() > estimate.memory().device_bytes())
      estimate.largest = estimate.pipeline.size() - 1;
  }
  if (estimate.fits()) return estimate;
  for (const auto& group : possible_changes(config, device)) {
    for (const auto& setting : group) {
      const Change change{{setting}, bytes_of(with(config, {setting}), shape, device)};
      if (change.device_bytes > limit) continue;
      estimate.remedy = change;
      return estimate;
    }
    if (!group.empty()) estimate.least.settings.push_back(group.back());
  }
  estimate.least.device_bytes = bytes_of(with(config, estimate.least.settings), shape, device);
  return estimate;
}

}  // namespace tessera::predict
