#include <fmt/format.h>

#include "tessera/config/accelerate/translate.h"

namespace tessera::config::accelerate {
namespace {

const std::string kSection = "deepspeed_config.";

Decision zero_stage(const RuleInput& input) {
  static const std::map<std::string, std::string> placements{
      {"0", "replicate"}, {"1", "shard_optimizer"}, {"2", "shard_gradients"}, {"3", "full_shard"}};
  return translated({{"parallel.placement", placements.at(input.setting.value)}});
}

Decision offload_param_device(const RuleInput& input) {
  const auto& device = input.setting.value;
  if (device == "none") return translated({{"parallel.offload_params", "false"}});
  if (input.text(kSection + "zero_stage") != "3") {
    const auto* stage = input.settings.find(kSection + "zero_stage");
    const Setting usual{.key = kSection + "zero_stage", .value = "2", .origin = "default"};
    contradict(input.setting, stage == nullptr ? usual : *stage,
               "parameters are split in stage 3 alone");
  }
  if (device == "cpu")
    return translated({{"parallel.offload_params", "true"}}, "the optimizer goes along");
  return translated({{"parallel.offload_params", "nvme"}, {"parallel.offload_optimizer", "nvme"}},
                    "the optimizer's states go along");
}

Decision offload_optimizer_device(const RuleInput& input) {
  const auto& device = input.setting.value;
  if (device == "nvme") {
    return translated({{"parallel.offload_optimizer", "nvme"}}, "the optimizer's states");
  }
  if (input.text(kSection + "offload_param_device") == "nvme")
    return not_applicable("beside parameters on drives the states are there, too");
  if (input.text(kSection + "offload_param_device") == "cpu") {
    if (device == "cpu") return honoured("part of parallel.offload_params");
    return not_applicable("parallel.offload_params takes the optimizer along");
  }
  return translated({{"parallel.offload_optimizer", device == "cpu" ? "true" : "false"}});
}

Decision nvme_path(const RuleInput& input) {
  const bool param = input.setting.key.find("param") != std::string::npos;
  const auto device = kSection + (param ? "offload_param_device" : "offload_optimizer_device");
  if (input.text(device) == "nvme" && !input.setting.value.empty()) {
    const auto of_states = input.text(kSection + "offload_optimizer_nvme_path");
    const bool both =
        param && !of_states.empty() && input.text(kSection + "offload_optimizer_device") == "nvme";
    if (!both) return translated({{"offload.paths", input.setting.value}});
    return not_applicable("offload.paths is the optimizer's; both go there");
  }
  return not_applicable(fmt::format("counts for {} nvme", device.substr(kSection.size())));
}

Decision accumulation(const RuleInput& input) {
  const auto& steps = input.setting.value;
  return translated({}, "train.micro_batch=" + (steps == "1" ? "0" : "share of a rank / " + steps));
}

Decision zero3_init(const RuleInput& input) {
  if (input.setting.value == "true")
    return honoured("always so: a rank makes its own slices alone");
  return not_applicable("a rank never makes more than its own slices");
}

Decision save_16bit_model(const RuleInput& input) {
  if (input.setting.value == "false") return honoured();
  return not_applicable(
      "checkpoints are sharded; tessera checkpoint convert --to huggingface --dtype bf16 writes "
      "whole weights");
}

Decision moe_layers(const RuleInput&) {
  return not_applicable("which experts are gathered, and when, never depends on the data");
}

Decision multinode_launcher(const RuleInput& input) {
  if (input.setting.value == "standard") return honoured("tessera launch on each machine");
  if (input.launch.num_machines == 1) return not_applicable("counts for several machines");
  return refused("start tessera launch on each machine, and set standard");
}

Decision hosts(const RuleInput& input) {
  if (input.launch.num_machines == 1) return not_applicable("counts for several machines");
  return refused("start tessera launch on each machine, and remove it");
}

Decision config_file(const RuleInput&) { return honoured("its keys follow"); }

}  // namespace

const Rules& deepspeed_rules() {
  static const Rules rules{
      {kSection + "deepspeed_config_file", config_file},
      {kSection + "zero_stage", zero_stage},
      {kSection + "offload_optimizer_device", offload_optimizer_device},
      {kSection + "offload_param_device", offload_param_device},
      {kSection + "offload_optimizer_nvme_path", nvme_path},
      {kSection + "offload_param_nvme_path", nvme_path},
      {kSection + "gradient_accumulation_steps", accumulation},
      {kSection + "gradient_clipping", max_grad_norm},
      {kSection + "zero3_init_flag", zero3_init},
      {kSection + "zero3_save_16bit_model", save_16bit_model},
      {kSection + "deepspeed_moe_layer_cls_names", moe_layers},
      {kSection + "deepspeed_multinode_launcher", multinode_launcher},
      {kSection + "deepspeed_hostfile", hosts},
      {kSection + "deepspeed_exclusion_filter", hosts},
      {kSection + "deepspeed_inclusion_filter", hosts},
  };
  return rules;
}

}  // namespace tessera::config::accelerate
