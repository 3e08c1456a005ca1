#include "tessera/config/accelerate/keys.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <optional>

#include "tessera/base/letters.h"

namespace tessera::config::accelerate {
namespace {

using enum KeyType;

const Range kAtLeastZero{.low = 0, .high = 1e12};
const Range kAtLeastOne{.low = 1, .high = 1e12};
const Range kAboveZero{.low = 0, .high = 1e12, .low_open = true};
const Range kDegree{.low = 1, .high = 65536};  ///< of a kind of parallelism, of ranks

/// What few keys have. Option and variable follow from the key's name if they are not given.
struct Rest {
  std::vector<std::string> choices = {};
  Range range = {};
  std::optional<std::string> option = {};    ///< else "--" and the name
  std::optional<std::string> variable = {};  ///< else the section's prefix and the name
};

/// The keys of one section, whose prefixes are said once.
class SectionKeys {
 public:
  SectionKeys(std::string section, std::string prefix, std::string variable_prefix)
      : section_(std::move(section)),
        prefix_(std::move(prefix)),
        variable_prefix_(std::move(variable_prefix)) {}

  SectionKeys& add(const std::string& name, KeyType type, std::string default_value,
                   std::string meaning, const Rest& rest = {}) {
    const auto variable = variable_prefix_.empty() ? "" : variable_prefix_ + upper_case(name);
    keys_.push_back({.section = section_,
                     .name = prefix_ + name,
                     .type = type,
                     .default_value = std::move(default_value),
                     .choices = rest.choices,
                     .meaning = std::move(meaning),
                     .option = rest.option.value_or("--" + prefix_ + name),
                     .variable = rest.variable.value_or(variable),
                     .range = rest.range});
    return *this;
  }

  std::vector<Key> build() { return std::move(keys_); }

 private:
  std::string section_, prefix_, variable_prefix_;
  std::vector<Key> keys_;
};

std::vector<Key> top_keys() {
  auto keys = SectionKeys("", "", "");
  keys.add("compute_environment", text, "LOCAL_MACHINE", "where the run takes place",
           {.choices = {"LOCAL_MACHINE", "AMAZON_SAGEMAKER"}, .option = ""})
      .add("distributed_type", text, "", "how several processes work together",
           {.choices = {"NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM",
                        "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA",
                        "MULTI_HPU", "MULTI_NEURON", "XLA"},
            .option = ""})
      .add("use_cpu", boolean, "false", "train on the CPU even where there are GPUs",
           {.option = "--cpu", .variable = "ACCELERATE_USE_CPU"})
      .add("mixed_precision", text, "no", "what products are computed in",
           {.choices = {"no", "fp16", "bf16", "fp8"}, .variable = "ACCELERATE_MIXED_PRECISION"})
      .add("num_processes", integer, "-1", "processes over all machines",
           {.range = {.low = 1, .high = 65536, .also = -1}})
      .add("num_machines", integer, "1", "machines of the run", {.range = kDegree})
      .add("machine_rank", integer, "0", "which of the machines this is, from 0",
           {.range = {.low = 0, .high = 65535}})
      .add("main_process_ip", text, "", "address of machine 0")
      .add("main_process_port", integer, "", "port on machine 0 where ranks meet; 0: a free one",
           {.range = {.low = 0, .high = 65535}})
      .add("rdzv_backend", text, "static", "how machines find each other")
      .add("same_network", boolean, "false", "all machines are in one local network")
      .add("gpu_ids", text, "", "GPUs of this machine that are used: all, or 0,1",
           {.variable = "CUDA_VISIBLE_DEVICES"})
      .add("enable_cpu_affinity", boolean, "false", "each process stays on cores near its GPU",
           {.variable = "ACCELERATE_CPU_AFFINITY"})
      .add("debug", boolean, "false", "check shapes before every collective",
           {.variable = "ACCELERATE_DEBUG_MODE"})
      .add("main_training_function", text, "main", "function of the script that TPUs start")
      .add("downcast_bf16", boolean, "false", "TPUs: float becomes bfloat16, double float")
      .add("tpu_name", text, "", "name of a TPU pod", {.option = ""})
      .add("tpu_zone", text, "", "zone of a TPU pod", {.option = ""})
      .add("tpu_use_cluster", boolean, "false", "start on a TPU pod", {.option = "--tpu_cluster"})
      .add("tpu_use_sudo", boolean, "false", "start with sudo on each TPU host")
      .add("tpu_vm", list, "", "hosts of a TPU pod", {.option = "--vm"})
      .add("tpu_env", list, "", "variables set on TPU hosts", {.option = "--env"})
      .add("commands", list, "", "commands run on TPU hosts before the start", {.option = ""})
      .add("command_file", text, "", "script run on TPU hosts before the start", {.option = ""});
  // The keys of no section stand together: YAML has no way back out of one.
  for (const auto* name : kSageMakerKeys) {
    keys.add(name, text, "", "of Amazon SageMaker", {.option = ""});
  }
  return keys.build();
}

std::vector<Key> fsdp_keys() {
  const std::vector<std::string> strategies{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
                                            "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
  auto reshard = strategies;
  reshard.insert(reshard.begin(), {"true", "false"});
  return SectionKeys("fsdp_config", "fsdp_", "FSDP_")
      .add("version", integer, "1", "FSDP1 or FSDP2", {.choices = {"1", "2"}})
      .add("sharding_strategy", text, "FULL_SHARD", "version 1: what is split over ranks",
           {.choices = strategies})
      .add("reshard_after_forward", text, "true",
           "version 2: free whole parameters between forward and backward; version 1: a strategy",
           {.choices = reshard})
      .add("auto_wrap_policy", text, "", "what becomes a unit",
           {.choices = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}})
      .add("transformer_layer_cls_to_wrap", text, "",
           "TRANSFORMER_BASED_WRAP: classes of blocks, separated by commas",
           {.variable = "FSDP_TRANSFORMER_CLS_TO_WRAP"})
      .add("min_num_params", integer, "100000000", "SIZE_BASED_WRAP: parameters of a unit",
           {.range = kAtLeastOne})
      .add("backward_prefetch", text, "",
           "gather the next unit of a backward before or after the present one's gradients",
           {.choices = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}})
      .add("forward_prefetch", boolean, "false",
           "gather the next unit while one computes its forward")
      .add("offload_params", boolean, "false", "parameters and optimizer on the host")
      .add("state_dict_type", text, "", "form of checkpoints",
           {.choices = {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}})
      .add("use_orig_params", boolean, "true",
           "version 1: the optimizer sees the module's own parameters")
      .add("cpu_ram_efficient_loading", boolean, "true",
           "only one process holds pretrained weights in memory")
      .add("sync_module_states", boolean, "true", "rank 0 sends its weights to the others")
      .add("activation_checkpointing", boolean, "false",
           "activations of a unit are computed again in its backward")
      .add("activation_checkpointing_offload", boolean, "false",
           "version 2: what checkpointing keeps goes to the host")
      .add("ignored_modules", text, "", "modules (a pattern) that are not split", {.option = ""})
      .build();
}

std::vector<Key> deepspeed_keys() {
  const std::vector<std::string> devices{"none", "cpu", "nvme"};
  return SectionKeys("deepspeed_config", "", "ACCELERATE_DEEPSPEED_")
      .add("deepspeed_config_file", text, "", "a DeepSpeed JSON file in place of most keys below",
           {.variable = "ACCELERATE_DEEPSPEED_CONFIG_FILE"})
      .add("zero_stage", integer, "2",
           "0: nothing is split; 1: optimizer; 2: and gradients; 3: and parameters",
           {.choices = {"0", "1", "2", "3"}})
      .add("offload_optimizer_device", text, "none", "where the optimizer lives",
           {.choices = devices})
      .add("offload_param_device", text, "none", "stage 3: where parameters live",
           {.choices = devices})
      .add("offload_optimizer_nvme_path", text, "", "folder of the optimizer's state")
      .add("offload_param_nvme_path", text, "", "folder of the parameters")
      .add("gradient_accumulation_steps", integer, "1", "forwards in one optimizer step",
           {.range = kAtLeastOne, .variable = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"})
      .add("gradient_clipping", number, "", "largest norm of the gradients",
           {.range = kAtLeastZero, .variable = "ACCELERATE_GRADIENT_CLIPPING"})
      .add("zero3_init_flag", boolean, "", "stage 3: no process ever builds the whole model",
           {.variable = "ACCELERATE_DEEPSPEED_ZERO3_INIT"})
      .add("zero3_save_16bit_model", boolean, "", "stage 3: save the weights whole in 16 bits")
      .add("deepspeed_moe_layer_cls_names", text, "", "classes of mixture-of-experts layers",
           {.variable = "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"})
      .add("deepspeed_multinode_launcher", text, "", "what starts processes on other machines",
           {.choices = {"pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"},
            .variable = ""})
      .add("deepspeed_hostfile", text, "", "file with the other machines", {.variable = ""})
      .add("deepspeed_exclusion_filter", text, "", "machines and GPUs left out", {.variable = ""})
      .add("deepspeed_inclusion_filter", text, "", "machines and GPUs used", {.variable = ""})
      .build();
}

std::vector<Key> parallelism_keys() {
  return SectionKeys("parallelism_config", "parallelism_config_", "PARALLELISM_CONFIG_")
      .add("dp_replicate_size", integer, "1", "copies of the model", {.range = kDegree})
      .add("dp_shard_size", integer, "1", "ranks that share a copy", {.range = kDegree})
      .add("tp_size", integer, "1", "ranks that split each product", {.range = kDegree})
      .add("cp_size", integer, "1", "ranks that split a sequence in attention", {.range = kDegree})
      .add("cp_backend", text, "torch", "what splits it", {.choices = {"torch"}})
      .add("cp_comm_strategy", text, "allgather", "how its parts reach other ranks",
           {.choices = {"allgather", "alltoall"}})
      .add("sp_size", integer, "1", "ranks that split a sequence outside of attention",
           {.range = kDegree})
      .add("sp_backend", text, "deepspeed", "what splits it", {.choices = {"deepspeed"}})
      .add("sp_seq_length", integer, "", "length of every sequence", {.range = kAtLeastOne})
      .add("sp_seq_length_is_variable", boolean, "true", "lengths differ between batches")
      .add("sp_attn_implementation", text, "sdpa", "kernel of attention")
      .build();
}

/// One of Megatron's own arguments, which Accelerate hands on from a script (other_megatron_args) and has no
/// option for.
void add_megatron_own(SectionKeys& keys, const char* name, KeyType type, const char* value,
                      const char* meaning, const Rest& rest) {
  keys.add(name, type, value, meaning,
           {.choices = rest.choices, .range = rest.range, .option = "", .variable = ""});
}

void add_megatron_experts(SectionKeys& keys) {
  add_megatron_own(keys, "moe_expert_capacity_factor", number, "",
                   "tokens that an expert takes, in means of its share", {.range = kAboveZero});
  add_megatron_own(keys, "moe_token_drop_policy", text, "probs",
                   "which of them stay where it has no room", {.choices = {"probs", "position"}});
  add_megatron_own(keys, "moe_pad_expert_input_to_capacity", boolean, "false",
                   "each expert's rows are filled up to its capacity", {});
  add_megatron_own(keys, "moe_input_jitter_eps", number, "", "noise of what enters routers",
                   {.range = {.low = 0, .high = 1, .high_open = true}});
  add_megatron_own(keys, "overlap_moe_expert_parallel_comm", boolean, "false",
                   "rows travel while others are computed", {});
  add_megatron_own(keys, "moe_shared_expert_overlap", boolean, "false",
                   "a shared expert is computed while rows travel", {});
}

void add_megatron_fp8(SectionKeys& keys) {
  const auto own = [&](const char* name, KeyType type, const char* value, const char* meaning,
                       const Rest& rest = {}) {
    add_megatron_own(keys, name, type, value, meaning, rest);
  };
  own("fp8_format", text, "", "products in 8 bits: which fp8", {.choices = {"e4m3", "hybrid"}});
  own("fp8_recipe", text, "delayed", "what shares a scale",
      {.choices = {"tensorwise", "delayed", "mxfp8", "blockwise", "custom"}});
  own("fp8_margin", integer, "0", "delayed: powers of two kept free above the largest number",
      {.range = {.low = 0, .high = 32}});
  own("fp8_interval", integer, "1", "delayed: steps between new scales", {.range = kAtLeastOne});
  own("fp8_amax_history_len", integer, "1", "delayed: steps remembered for a scale",
      {.range = kAtLeastOne});
  own("fp8_amax_compute_algo", text, "most_recent", "delayed: what a scale is made from",
      {.choices = {"max", "most_recent"}});
  own("fp8_wgrad", boolean, "true", "weights' gradients are products in fp8, too");
  own("fp8_param_gather", boolean, "false", "weights are gathered in fp8");
  own("first_last_layers_bf16", boolean, "false", "the first and the last block stay in bf16");
  own("num_layers_at_start_in_bf16", integer, "1", "first_last_layers_bf16: blocks at the start",
      {.range = kAtLeastZero});
  own("num_layers_at_end_in_bf16", integer, "1", "first_last_layers_bf16: blocks at the end",
      {.range = kAtLeastZero});
  own("fp8_dot_product_attention", boolean, "false", "attention in fp8");
  own("fp8_multi_head_attention", boolean, "false", "attention and what surrounds it in fp8");
  own("moe_router_padding_for_fp8", boolean, "false", "rows of experts are padded for fp8");
}

std::vector<Key> megatron_lm_keys() {
  SectionKeys keys("megatron_lm_config", "megatron_lm_", "MEGATRON_LM_");
  keys.add("tp_degree", integer, "1", "ranks that split each product", {.range = kDegree})
      .add("pp_degree", integer, "1", "ranks that each hold some of the blocks", {.range = kDegree})
      .add("num_micro_batches", integer, "", "portions of a batch in flight",
           {.range = kAtLeastOne})
      .add("sequence_parallelism", boolean, "", "norms and dropout split over the sequence")
      .add("recompute_activations", boolean, "", "attention is computed again in the backward")
      .add("use_distributed_optimizer", boolean, "", "optimizer states split over ranks")
      .add("gradient_clipping", number, "1.0", "largest norm of the gradients; 0: any",
           {.range = kAtLeastZero})
      .add("use_custom_fsdp", boolean, "false", "Megatron's own FSDP")
      .add("no_load_optim", boolean, "false", "checkpoints are read without the optimizer")
      .add("no_save_optim", boolean, "false", "checkpoints are written without the optimizer")
      .add("eod_mask_loss", boolean, "false", "no loss at the end of a document")
      .add("optimizer_cpu_offload", boolean, "false", "the optimizer lives on the host")
      .add("overlap_cpu_optimizer_d2h_h2d", boolean, "false",
           "copies to and from it in the background")
      .add("use_precision_aware_optimizer", boolean, "false", "optimizer states in chosen dtypes")
      .add("decoder_last_pipeline_num_layers", integer, "", "blocks of the last stage",
           {.range = kAtLeastOne})
      .add("recompute_granularity", text, "", "what is computed again",
           {.choices = {"full", "selective"}})
      .add("recompute_method", text, "", "which blocks are", {.choices = {"uniform", "block"}})
      .add("recompute_num_layers", integer, "", "how many are", {.range = kAtLeastOne})
      .add("attention_backend", boolean, "", "choose the kernel of attention")
      .add("expert_model_parallel_size", integer, "", "ranks that share the experts",
           {.range = kDegree})
      .add("expert_tensor_parallel_size", integer, "", "ranks that split each expert",
           {.range = kDegree})
      .add("context_parallel_size", integer, "", "ranks that split a sequence", {.range = kDegree})
      .add("attention_dropout", number, "", "probability", {.range = {.low = 0, .high = 1}})
      .add("hidden_dropout", number, "", "probability", {.range = {.low = 0, .high = 1}})
      .add("attention_softmax_in_fp32", boolean, "", "softmax in fp32")
      .add("calculate_per_token_loss", boolean, "", "the loss is divided by the number of tokens")
      .add("use_rotary_position_embeddings", boolean, "", "rotary positions");
  add_megatron_experts(keys);
  add_megatron_fp8(keys);
  return keys.build();
}

std::vector<Key> fp8_keys() {
  return SectionKeys("fp8_config", "fp8_", "ACCELERATE_FP8_")
      .add("backend", text, "", "torchao, TransformerEngine or MS-AMP",
           {.choices = {"AO", "TE", "MSAMP"}})
      .add("use_autocast_during_eval", boolean, "false", "TE: fp8 in evaluation, too")
      .add("margin", integer, "0", "TE: powers of two kept free above the largest number",
           {.range = {.low = 0, .high = 64}})
      .add("interval", integer, "1", "TE: steps between new scales", {.range = kAtLeastOne})
      .add("format", text, "HYBRID", "TE: which fp8", {.choices = {"HYBRID", "E4M3", "E5M2"}})
      .add("amax_history_len", integer, "1024", "TE: steps remembered for a scale",
           {.range = kAtLeastOne})
      .add("amax_compute_algo", text, "most_recent", "TE: what a scale is made from",
           {.choices = {"max", "most_recent"}})
      .add("override_linear_precision", list, "[false, false, false]",
           "TE: which of the three products of a linear layer are not in fp8", {.variable = ""})
      .add("use_mxfp8_block_scaling", boolean, "false", "TE: MXFP8 in the place of delayed scaling")
      .add("opt_level", text, "O2", "MS-AMP: how much is in fp8", {.choices = {"O1", "O2"}})
      .add("enable_fsdp_float8_all_gather", boolean, "true", "AO: FSDP2 gathers in fp8")
      .add("pad_inner_dim", boolean, "true", "AO: pad products to multiples of 16")
      .build();
}

std::vector<Key> dynamo_keys() {
  return SectionKeys("dynamo_config", "dynamo_", "ACCELERATE_DYNAMO_")
      .add("backend", text, "NO", "compiler of Python models",
           {.choices = {"NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER",
                        "CUDAGRAPHS", "OFI", "FX2TRT", "ONNXRT", "TENSORRT",
                        "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "TVM", "HPU_BACKEND",
                        "NEURON"}})
      .add("mode", text, "default", "what it optimises for",
           {.choices = {"default", "reduce-overhead", "max-autotune"}})
      .add("use_fullgraph", boolean, "false", "the whole model in one graph")
      .add("use_dynamic", boolean, "false", "shapes may change")
      .add("use_regional_compilation", boolean, "false", "a repeated block once")
      .build();
}

std::vector<Key> mpirun_keys() {
  return SectionKeys("mpirun_config", "mpirun_", "")
      .add("hostfile", text, "", "file with the machines for mpirun")
      .add("ccl", integer, "", "older files: threads of oneCCL",
           {.range = kAtLeastZero, .option = ""})
      .build();
}

std::vector<Key> build() {
  std::vector<Key> all;
  for (auto* section : {top_keys, fsdp_keys, deepspeed_keys, parallelism_keys, megatron_lm_keys,
                        fp8_keys, dynamo_keys, mpirun_keys}) {
    std::ranges::move(section(), std::back_inserter(all));
  }
  return all;
}

/// Names in older files, or of Accelerate's questionnaire where its launcher reads another one,
/// with the names of today.
const std::map<std::string, std::string>& old_names() {
  static const std::map<std::string, std::string> names{
      {"fp16", "mixed_precision"},
      {"dynamo_backend", "dynamo_config.dynamo_backend"},
      {"fsdp_config.fsdp_backward_prefetch_policy", "fsdp_config.fsdp_backward_prefetch"},
      {"fp8_config.fp8_amax_history_length", "fp8_config.fp8_amax_history_len"},
      {"fp8_config.fp8_amax_compute_algorithm", "fp8_config.fp8_amax_compute_algo"},
      {"fp8_config.fp8_optimization_level", "fp8_config.fp8_opt_level"},
  };
  return names;
}

const Key* exact(const std::string& dotted) {
  static const auto index = [] {
    std::map<std::string, const Key*> by_name;
    for (const auto& key : keys()) by_name[key.dotted()] = &key;
    return by_name;
  }();
  const auto old = old_names().find(dotted);
  const auto found = index.find(old == old_names().end() ? dotted : old->second);
  return found == index.end() ? nullptr : found->second;
}

}  // namespace

std::string Key::dotted() const { return section.empty() ? name : section + "." + name; }

std::string section_prefix(const std::string& section) {
  if (section == "parallelism_config") return section + "_";
  const auto end = section.rfind("config");
  return end == std::string::npos ? "" : section.substr(0, end);
}

const std::vector<Key>& keys() {
  static const auto all = build();
  return all;
}

const Key* find_key(const std::string& dotted) {
  if (const auto* key = exact(dotted)) return key;
  const auto dot = dotted.find('.');
  if (dot == std::string::npos) return nullptr;
  const auto section = dotted.substr(0, dot);
  return exact(section + "." + section_prefix(section) + dotted.substr(dot + 1));
}

}  // namespace tessera::config::accelerate
