#include "tessera/estimate/fit.h"

#include <algorithm>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/config/fields.h"
#include "tessera/config/values.h"

namespace tessera::estimate {
namespace {

using config::ModelShape;
using config::RunConfig;

StepMemory memory_of(const RunConfig& config, const ModelShape& shape, const Device& device) {
  const auto units = plan_units(config, shape, device.is_host);
  const int64_t ranks = config.parallel.num_ranks;
  const int64_t rows = (config.train.global_batch + ranks - 1) / ranks;
  return step_memory(config, shape, units, rows, device);
}

RunConfig with(RunConfig config, const std::vector<Setting>& settings) {
  for (const auto& [key, value] : settings) {
    config::set_field(*config::find_field(key),
                      {.kind = config::RawValue::Kind::scalar, .text = value}, key, config);
  }
  return config;
}

/// Values of `key` beyond the present one: those after it in `values`.
std::vector<Setting> beyond(const std::string& key, const std::string& present,
                            const std::vector<std::string>& values) {
  const auto found = std::ranges::find(values, present);
  std::vector<Setting> result;
  if (found == values.end()) return result;
  for (auto next = found + 1; next != values.end(); ++next) result.emplace_back(key, *next);
  return result;
}

/// Each group holds the settings of one kind, from cheap to dear.
std::vector<std::vector<Setting>> possible_changes(const RunConfig& config, const Device& device) {
  std::vector<std::vector<Setting>> groups;
  const auto& parallel = config.parallel;
  if (parallel.num_ranks > 1 && parallel.dp_replicate == -1) {
    groups.push_back(beyond("parallel.placement", parallel.placement,
                            {"replicate", "shard_optimizer", "shard_gradients", "full_shard"}));
  }
  groups.push_back(
      beyond("memory.checkpointing", config.memory.checkpointing, {"none", "selective", "full"}));
  if (!device.is_host && !parallel.offload_params && !parallel.offload_optimizer)
    groups.push_back({{"parallel.offload_optimizer", "true"}});
  std::vector<Setting> smaller;
  const int64_t rows = std::max<int64_t>(1, config.train.global_batch / parallel.num_ranks);
  const int64_t present =
      config.train.micro_batch > 0 ? std::min(config.train.micro_batch, rows) : rows;
  for (int64_t size = present / 2; size >= 1; size /= 2) {
    if (present % size == 0) smaller.emplace_back("train.micro_batch", std::to_string(size));
  }
  groups.push_back(std::move(smaller));
  if (config.precision.compute == "fp32") groups.push_back({{"precision.compute", "bf16"}});
  return groups;
}

}  // namespace

RankEstimate estimate_rank(const RunConfig& config, const ModelShape& shape, const Device& device,
                           double limit) {
  RankEstimate estimate{.num_ranks = config.parallel.num_ranks,
                        .memory = memory_of(config, shape, device),
                        .limit = limit};
  if (estimate.fits()) return estimate;
  for (const auto& group : possible_changes(config, device)) {
    for (const auto& setting : group) {
      const Change change{{setting},
                          memory_of(with(config, {setting}), shape, device).device_bytes()};
      if (change.device_bytes > limit) continue;
      estimate.remedy = change;
      return estimate;
    }
    if (!group.empty()) estimate.least.settings.push_back(group.back());
  }
  estimate.least.device_bytes =
      memory_of(with(config, estimate.least.settings), shape, device).device_bytes();
  return estimate;
}

}  // namespace tessera::estimate
