#include "tessera/config/accelerate/to_fsdp2.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/config/accelerate/translate.h"

namespace tessera::config::accelerate {
namespace {

const std::string kSection = "fsdp_config.", kVersion = kSection + "fsdp_version",
                  kStrategy = kSection + "fsdp_sharding_strategy",
                  kReshard = kSection + "fsdp_reshard_after_forward",
                  kStateDict = kSection + "fsdp_state_dict_type";
const std::string kReplicate = "parallelism_config.parallelism_config_dp_replicate_size",
                  kShard = "parallelism_config.parallelism_config_dp_shard_size";

/// Why a key is left out; "" if it stays.
std::string dropped(const std::string& key) {
  if (key == kSection + "fsdp_backward_prefetch") return "version 2 prefetches by itself";
  if (key == kSection + "fsdp_forward_prefetch") return "Accelerate has it in version 1 alone";
  if (key == kSection + "fsdp_sync_module_states") return "version 2 does so when it loads weights";
  if (key == kSection + "fsdp_use_orig_params") return "always so in version 2";
  return "";
}

std::string name_of(const Setting& setting) {
  return setting.key.substr(setting.key.rfind('.') + 1);
}

void check_version(const Settings& settings) {
  const auto& all = settings.all();
  const auto first = std::ranges::find_if(
      all, [](const Setting& setting) { return setting.key.starts_with(kSection); });
  if (first == all.end()) {
    const auto* type = settings.find("distributed_type");
    user_error("{}: distributed_type is {}, and there is no fsdp_config: nothing to convert",
               type->origin, type->value);
  }
  const auto* version = settings.find(kVersion);
  if (version != nullptr && version->value == "2") {
    user_error("{}: fsdp_version is 2 already; nothing to convert", version->origin);
  }
}

/// The strategy of version 1, under whichever of its two names.
Setting strategy_of(const Settings& settings) {
  const auto* strategy = settings.find(kStrategy);
  const auto* reshard = settings.find(kReshard);
  const bool is_strategy =
      reshard != nullptr && reshard->value != "true" && reshard->value != "false";
  if (strategy != nullptr && is_strategy && strategy->value != reshard->value) {
    contradict(*strategy, *reshard, "version 1 has one strategy");
  }
  if (strategy != nullptr) return *strategy;
  if (reshard != nullptr) return *reshard;  // true and false already are what version 2 has
  return {.key = kStrategy, .value = "FULL_SHARD", .origin = "default"};
}

/// The number that a hybrid strategy needs.
int64_t needed(const Settings& settings, const char* key, const Setting& strategy) {
  if (settings.find(key) == nullptr || settings.integer(key) < 1) {
    user_error("{}: {} splits within each machine and copies between them: give {}",
               strategy.origin, strategy.value, key);
  }
  return settings.integer(key);
}

void add_sizes(const Setting& strategy, Fsdp2& result) {
  auto& settings = result.settings;
  if (settings.find(kReplicate) != nullptr || settings.find(kShard) != nullptr) {
    result.changes.push_back("parallelism_config: its sizes stay as they are");
    return;
  }
  const auto machines = needed(settings, "num_machines", strategy);
  const auto processes = needed(settings, "num_processes", strategy);
  if (processes % machines != 0) {
    contradict(*settings.find("num_processes"), *settings.find("num_machines"),
               "each machine starts the same number");
  }
  const auto add = [&](const std::string& key, int64_t size) {
    settings.set({.key = key, .value = fmt::format("{}", size), .origin = strategy.origin});
  };
  add(kReplicate, machines);
  add(kShard, processes / machines);
  result.changes.push_back(fmt::format(
      "parallelism_config: dp_replicate_size {} and dp_shard_size {}, for {} on {} machines of {} "
      "processes",
      machines, processes / machines, strategy.value, machines, processes / machines));
}

}  // namespace

Fsdp2 to_fsdp2(const Settings& settings) {
  check_version(settings);
  const auto strategy = strategy_of(settings);
  Fsdp2 result;
  for (auto setting : settings.all()) {
    if (setting.key == kVersion || setting.key == kStrategy || setting.key == kReshard) continue;
    if (const auto why = dropped(setting.key); !why.empty()) {
      result.changes.push_back(fmt::format("{}: left out; {}", name_of(setting), why));
      continue;
    }
    if (setting.key == kStateDict && setting.value == "LOCAL_STATE_DICT") {
      setting.value = "SHARDED_STATE_DICT";
      result.changes.push_back(
          "fsdp_state_dict_type: SHARDED_STATE_DICT; version 2 has no "
          "LOCAL_STATE_DICT");
    }
    result.settings.set(std::move(setting));
  }
  const auto reshards = {"FULL_SHARD", "HYBRID_SHARD", "true"};
  const bool reshard = std::ranges::find(reshards, strategy.value) != reshards.end();
  const std::string text = reshard ? "true" : "false";
  result.settings.set({.key = kVersion, .value = "2", .origin = strategy.origin});
  result.settings.set({.key = kReshard, .value = text, .origin = strategy.origin});
  result.changes.insert(result.changes.begin(), "fsdp_version: 2");
  auto line = "fsdp_reshard_after_forward: " + text;
  if (strategy.value != text) line += ", for " + strategy.value;
  if (strategy.origin == "default") line += ", the default of version 1";
  if (strategy.value == "NO_SHARD") {
    line += "; version 2 always shards: for whole copies set distributed_type to MULTI_GPU";
  }
  result.changes.insert(result.changes.begin() + 1, line);
  if (strategy.value.starts_with("HYBRID")) add_sizes(strategy, result);
  return result;
}

}  // namespace tessera::config::accelerate
