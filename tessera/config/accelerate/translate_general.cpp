#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/config/accelerate/keys.h"
#include "tessera/config/accelerate/translate.h"
#include "tessera/config/values.h"

namespace tessera::config::accelerate {
namespace {

// ---- the kind of run ---------------------------------------------------------------------------

/// What a distributed_type of other hardware would run on.
const std::map<std::string, std::string>& other_hardware() {
  static const std::map<std::string, std::string> needs{{"MULTI_XPU", "Intel GPUs"},
                                                        {"MULTI_NPU", "Ascend NPUs"},
                                                        {"MULTI_MLU", "Cambricon MLUs"},
                                                        {"MULTI_SDAA", "Teco SDAA cards"},
                                                        {"MULTI_MUSA", "Moore Threads GPUs"},
                                                        {"MULTI_HPU", "Gaudi HPUs"},
                                                        {"MULTI_NEURON", "Trainium or Inferentia"},
                                                        {"XLA", "TPUs"}};
  return needs;
}

bool splits(const RuleInput& input) {
  return input.type == "FSDP" || input.type == "DEEPSPEED" || input.type == "MEGATRON_LM";
}

/// The placement, as far as the section of the type does not say it.
Decision distributed_type(const RuleInput& input) {
  const auto& type = input.setting.value;
  const auto hardware = other_hardware().find(type);
  if (hardware != other_hardware().end() && !input.launch.cpu) {
    return refused(
        fmt::format("needs {}; tessera drives NVIDIA GPUs and CPUs (--cpu tries it on a CPU)",
                    hardware->second));
  }
  if (type == "FSDP") {
    if (input.given("fsdp_config.fsdp_sharding_strategy")) return honoured("fsdp_config says how");
    return translated({{"parallel.placement", "full_shard"}});
  }
  if (type == "DEEPSPEED") {
    if (input.given("deepspeed_config.deepspeed_config_file")) return honoured("its file says how");
    if (input.given("deepspeed_config.zero_stage")) return honoured("zero_stage says how");
    return translated({{"parallel.placement", "shard_gradients"}}, "stage 2");
  }
  if (type == "MEGATRON_LM" && input.given("megatron_lm_config.use_distributed_optimizer")) {
    return honoured("megatron_lm_config says how");
  }
  return translated({{"parallel.placement", "replicate"}});
}

Decision mixed_precision(const RuleInput& input) {
  const auto& precision = input.setting.value;
  if (precision == "fp8") return fp8_precision(input, /*autocast=*/!splits(input));
  if (precision == "no") {
    return translated({{"precision.compute", "fp32"}, {"precision.autocast", "false"}});
  }
  return translated(
      {{"precision.compute", precision}, {"precision.autocast", splits(input) ? "false" : "true"}});
}

Decision compute_environment(const RuleInput& input) {
  if (input.setting.value == "LOCAL_MACHINE") return honoured();
  return refused("jobs are not sent to Amazon SageMaker; run tessera on its machine");
}

// ---- processes and machines --------------------------------------------------------------------

Decision num_processes(const RuleInput& input) {
  const auto here = input.launch.num_processes / input.launch.num_machines;
  return translated({{"parallel.num_ranks", fmt::format("{}", here)}},
                    input.launch.num_machines == 1 ? "" : "on each machine");
}

/// Are `ids` GPUs: numbers, or names as nvidia-smi -L prints them, each once?
bool are_gpus(const std::string& ids) {
  std::set<std::string> seen;
  std::istringstream words(ids + ",");
  for (std::string word; std::getline(words, word, ',');) {
    const auto number = parse_integer(word);
    const bool name = word.starts_with("GPU-") || word.starts_with("MIG-");
    if (!name && !(number && *number >= 0 && *number < 1024)) return false;
    if (!seen.insert(word).second) return false;
  }
  return true;
}

Decision gpu_ids(const RuleInput& input) {
  const auto& [key, ids, origin, is_null] = input.setting;
  if (ids == "all") return honoured();
  // A launcher's own variable may hold what only CUDA knows.
  if (origin != find_key(key)->variable && !are_gpus(ids)) {
    user_error("{}: gpu_ids: expected all, or numbers such as 0,1, each once, got {}", origin,
               quoted(ids));
  }
  if (input.launch.cpu) return not_applicable("the run is on CPUs");
  const auto count = 1 + std::ranges::count(ids, ',');
  const auto here = input.launch.num_processes / input.launch.num_machines;
  const auto* processes = input.settings.find("num_processes");
  if (count < here && processes != nullptr) {
    contradict(input.setting, *processes, "each process needs a GPU of its own");
  }
  return honoured("CUDA_VISIBLE_DEVICES of the ranks");
}

Decision rdzv_backend(const RuleInput& input) {
  if (input.setting.value == "static") return honoured();
  return not_applicable("ranks meet at main_process_ip, in fixed number");
}

Decision launched(const RuleInput&) { return honoured(); }
Decision same_network(const RuleInput&) { return honoured("machines meet at main_process_ip"); }

Decision mpirun_hostfile(const RuleInput& input) {
  if (input.type != "MULTI_CPU" || input.launch.num_machines == 1) {
    return not_applicable("counts for MULTI_CPU on several machines");
  }
  return refused(
      fmt::format("start mpirun yourself (mpirun --hostfile {} -n {} tessera train ..), or "
                  "tessera launch on each machine without it",
                  input.setting.value, input.launch.num_processes));
}

// ---- kinds of parallelism ----------------------------------------------------------------------

/// The rule of dp_shard_size and dp_replicate_size.
Decision data_parallel_size(const RuleInput& input) {
  const bool shard = input.setting.key.find("shard") != std::string::npos;
  const auto& size = input.setting.value;
  const std::string key = shard ? "parallel.dp_shard" : "parallel.dp_replicate";
  if (input.type == "FSDP") return translated({{key, size}});
  if (size == "1") return honoured();
  if (!shard && !splits(input)) return translated({{key, size}});
  return refused("set distributed_type: FSDP to split the model over ranks");
}

Decision tensor_size(const RuleInput& input) {
  return translated({{"parallel.tp", input.setting.value}});
}

Decision other_size(const RuleInput& input) {
  if (input.setting.value == "1") return honoured();
  const char* kind = input.setting.key.ends_with("cp_size") ? "context" : "sequence";
  return refused(fmt::format("{} parallelism is not built yet; set 1", kind));
}

Decision of_other_size(const RuleInput& input) {
  const auto name = input.setting.key.find("_cp_") != std::string::npos ? "cp_size" : "sp_size";
  return not_applicable(fmt::format("counts for {} above 1", name));
}

// ---- what has no effect ------------------------------------------------------------------------

Decision dynamo(const RuleInput& input) {
  if (input.text("dynamo_config.dynamo_backend") == "NO") {
    return not_applicable("counts for another dynamo_backend than NO");
  }
  return not_applicable("there is no Python to compile; kernels are compiled already");
}

Decision tpu(const RuleInput&) { return not_applicable("counts for TPUs"); }
Decision sagemaker(const RuleInput&) { return not_applicable("counts for Amazon SageMaker"); }
Decision cpu_affinity(const RuleInput&) {
  return not_applicable("processes are left where the kernel puts them");
}
Decision debug(const RuleInput&) {
  return not_applicable("parameters are compared over the ranks before the first step in any case");
}
Decision mpirun_ccl(const RuleInput&) { return not_applicable("oneCCL is not used"); }

Rules make_rules() {
  Rules rules{
      {"compute_environment", compute_environment},
      {"distributed_type", distributed_type},
      {"mixed_precision", mixed_precision},
      {"use_cpu", [](const RuleInput&) { return honoured(); }},
      {"num_processes", num_processes},
      {"num_machines", launched},
      {"machine_rank", launched},
      {"main_process_ip", launched},
      {"main_process_port", launched},
      {"rdzv_backend", rdzv_backend},
      {"same_network", same_network},
      {"gpu_ids", gpu_ids},
      {"enable_cpu_affinity", cpu_affinity},
      {"debug", debug},
      {"mpirun_config.mpirun_hostfile", mpirun_hostfile},
      {"mpirun_config.mpirun_ccl", mpirun_ccl},
      {"parallelism_config.parallelism_config_dp_replicate_size", data_parallel_size},
      {"parallelism_config.parallelism_config_dp_shard_size", data_parallel_size},
      {"parallelism_config.parallelism_config_tp_size", tensor_size},
  };
  for (const auto* name :
       {"main_training_function", "downcast_bf16", "tpu_name", "tpu_zone", "tpu_use_cluster",
        "tpu_use_sudo", "tpu_vm", "tpu_env", "commands", "command_file"}) {
    rules[name] = tpu;
  }
  for (const auto& key : keys()) {
    if (key.section == "dynamo_config") rules[key.dotted()] = dynamo;
    if (key.section != "parallelism_config" || rules.contains(key.dotted())) continue;
    rules[key.dotted()] = key.name.ends_with("_size") ? other_size : of_other_size;
  }
  rules.insert(fp8_rules().begin(), fp8_rules().end());
  for (const auto* name : kSageMakerKeys) rules[name] = sagemaker;
  return rules;
}

}  // namespace

const Rules& general_rules() {
  static const auto rules = make_rules();
  return rules;
}

}  // namespace tessera::config::accelerate
