#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "tessera/config/accelerate/translate.h"

namespace tessera::config::accelerate {
namespace {

constexpr const char* kStrategy = "fsdp_config.fsdp_sharding_strategy";
constexpr const char* kReshard = "fsdp_config.fsdp_reshard_after_forward";
constexpr const char* kPolicy = "fsdp_config.fsdp_auto_wrap_policy";

bool second_version(const RuleInput& input) {
  return input.text("fsdp_config.fsdp_version") == "2";
}

/// A strategy of version 1. The hybrid ones split within a machine and copy between machines,
/// unless parallelism_config gives sizes.
Decision strategy(const RuleInput& input) {
  const auto& name = input.setting.value;
  const bool hybrid = name.starts_with("HYBRID");
  const char* placement = name == "NO_SHARD"             ? "replicate"
                          : name == "SHARD_GRAD_OP"      ? "shard_gradients"
                          : name == "HYBRID_SHARD_ZERO2" ? "shard_gradients"
                                                         : "full_shard";
  JobKeys job{{"parallel.placement", placement}};
  const bool sized = input.given("parallelism_config.dp_shard_size") ||
                     input.given("parallelism_config.dp_replicate_size");
  if (hybrid && !sized && input.launch.problem.empty()) {
    const auto machines = input.launch.num_machines;
    job.emplace_back("parallel.dp_shard", fmt::format("{}", input.launch.num_processes / machines));
    job.emplace_back("parallel.dp_replicate", fmt::format("{}", machines));
  }
  return translated(std::move(job), hybrid && sized ? "sizes are those of parallelism_config" : "");
}

Decision sharding_strategy(const RuleInput& input) {
  if (!second_version(input)) {
    const auto* other = input.settings.find(kReshard);
    const bool is_strategy = other != nullptr && other->value != "true" && other->value != "false";
    if (is_strategy && other->value != input.setting.value) {
      contradict(input.setting, *other, "version 1 has one strategy");
    }
    return strategy(input);
  }
  if (input.setting.value == "FULL_SHARD") {
    return not_applicable("version 2 has fsdp_reshard_after_forward instead");
  }
  return refused(
      "version 2 has no strategies; set fsdp_reshard_after_forward, and sizes in "
      "parallelism_config for a hybrid one (tessera to-fsdp2 does both), or fsdp_version: 1");
}

Decision reshard_after_forward(const RuleInput& input) {
  const auto& value = input.setting.value;
  const bool truth = value == "true" || value == "false";
  if (second_version(input)) {
    if (truth) return translated_if_effective({{"parallel.reshard_after_forward", value}});
    return refused("version 2 takes true or false; set one of them, or fsdp_version: 1");
  }
  // Accelerate's launcher overrules it by its own FULL_SHARD: choices of its questionnaire are
  // lost.
  if (!truth) return strategy(input);
  if (value == "true") return honoured("version 1: fsdp_sharding_strategy says");
  return refused("version 1 takes a strategy; set SHARD_GRAD_OP, or fsdp_version: 2");
}

Decision auto_wrap_policy(const RuleInput& input) {
  const auto& value = input.setting.value;
  if (value == "TRANSFORMER_BASED_WRAP") return translated({{"parallel.units", "block"}});
  if (value == "NO_WRAP") return translated({{"parallel.units", "model"}});
  return translated({{"parallel.units", "size"},
                     {"parallel.min_num_params", input.text("fsdp_config.fsdp_min_num_params")}});
}

Decision layer_classes(const RuleInput& input) {
  static constexpr std::array kKnown{"LlamaDecoderLayer", "MistralDecoderLayer",
                                     "Qwen2DecoderLayer", "Qwen3DecoderLayer",
                                     "GPT2Block",         "BertLayer"};
  if (input.text(kPolicy) != "TRANSFORMER_BASED_WRAP") {
    return not_applicable("counts for fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP");
  }
  std::istringstream names(input.setting.value);
  for (std::string name; std::getline(names, name, ',');) {
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    if (std::ranges::find(kKnown, name) != kKnown.end()) continue;
    return translated(
        {{"parallel.units", "block"}},
        fmt::format("{} is looked for in the module of a tessera::Accelerator", name));
  }
  return translated({{"parallel.units", "block"}});
}

Decision min_num_params(const RuleInput& input) {
  if (input.text(kPolicy) == "SIZE_BASED_WRAP") {
    return translated({{"parallel.min_num_params", input.setting.value}});
  }
  return not_applicable("counts for fsdp_auto_wrap_policy SIZE_BASED_WRAP");
}

Decision backward_prefetch(const RuleInput& input) {
  const auto& value = input.setting.value;
  const char* when = value == "BACKWARD_PRE" ? "pre" : value == "BACKWARD_POST" ? "post" : "none";
  return translated_if_effective({{"parallel.backward_prefetch", when}});
}

Decision forward_prefetch(const RuleInput& input) {
  return translated_if_effective({{"parallel.forward_prefetch", input.setting.value}});
}

Decision offload_params(const RuleInput& input) {
  return translated({{"parallel.offload_params", input.setting.value}});
}

Decision state_dict_type(const RuleInput& input) {
  const auto& value = input.setting.value;
  if (value == "SHARDED_STATE_DICT") return honoured("checkpoints are always so");
  if (value == "FULL_STATE_DICT") {
    return not_applicable(
        "checkpoints are sharded, and any number of ranks loads them; tessera checkpoint merge "
        "writes one file");
  }
  if (second_version(input)) {
    return refused("version 2 has no LOCAL_STATE_DICT; set SHARDED_STATE_DICT");
  }
  return not_applicable("checkpoints are sharded, and any number of ranks loads them");
}

Decision use_orig_params(const RuleInput& input) {
  if (input.setting.value == "true") return honoured("always so");
  return not_applicable("parameters are always the module's own");
}

Decision cpu_ram_efficient_loading(const RuleInput& input) {
  if (input.setting.value == "false") {
    return not_applicable("a rank never holds more than its own slices of the weights");
  }
  const auto* sync = input.settings.find("fsdp_config.fsdp_sync_module_states");
  if (!second_version(input) && sync != nullptr && sync->value == "false") {
    contradict(input.setting, *sync, "weights that one process read must reach the others");
  }
  return honoured("always so: a rank reads its own slices alone");
}

Decision sync_module_states(const RuleInput& input) {
  if (second_version(input)) {
    return not_applicable("version 2 needs it not: each rank reads its own slices");
  }
  return translated_if_effective({{"parallel.sync_module_states", input.setting.value}},
                                 "where model.init is pretrained");
}

Decision activation_checkpointing(const RuleInput& input) {
  const char* kept = input.setting.value == "true" ? "full" : "none";
  return translated({{"memory.checkpointing", kept}});
}

Decision checkpointing_offload(const RuleInput& input) {
  if (input.setting.value == "false") return honoured();
  return refused("activations are not offloaded yet; remove it");
}

Decision ignored_modules(const RuleInput&) {
  return refused("no module can be left out of the units yet; remove it");
}

}  // namespace

const Rules& fsdp_rules() {
  static const Rules rules{
      {"fsdp_config.fsdp_version",
       [](const RuleInput&) { return honoured("one engine for both"); }},
      {kStrategy, sharding_strategy},
      {kReshard, reshard_after_forward},
      {kPolicy, auto_wrap_policy},
      {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", layer_classes},
      {"fsdp_config.fsdp_min_num_params", min_num_params},
      {"fsdp_config.fsdp_backward_prefetch", backward_prefetch},
      {"fsdp_config.fsdp_forward_prefetch", forward_prefetch},
      {"fsdp_config.fsdp_offload_params", offload_params},
      {"fsdp_config.fsdp_state_dict_type", state_dict_type},
      {"fsdp_config.fsdp_use_orig_params", use_orig_params},
      {"fsdp_config.fsdp_cpu_ram_efficient_loading", cpu_ram_efficient_loading},
      {"fsdp_config.fsdp_sync_module_states", sync_module_states},
      {"fsdp_config.fsdp_activation_checkpointing", activation_checkpointing},
      {"fsdp_config.fsdp_activation_checkpointing_offload", checkpointing_offload},
      {"fsdp_config.fsdp_ignored_modules", ignored_modules},
  };
  return rules;
}

}  // namespace tessera::config::accelerate
