#include <fmt/format.h>

#include "tessera/config/accelerate/translate.h"

namespace tessera::config::accelerate {
namespace {

const std::string kPrefix = "megatron_lm_config.megatron_lm_";

Decision context_degree(const RuleInput& input) {
  if (input.setting.value == "1") return honoured();
  return refused("context parallelism is not built yet; set 1");
}

Decision expert_degree(const RuleInput& input) {
  return translated({{"parallel.ep", input.setting.value}});
}

/// All of tp unless it is said.
Decision expert_tensor_degree(const RuleInput& input) {
  const auto tp = input.settings.integer(kPrefix + "tp_degree");
  const auto etp = input.settings.integer(kPrefix + "expert_tensor_parallel_size");
  if (etp == tp) return honoured();
  if (etp >= 1 && tp % etp == 0) return translated({{"parallel.etp", input.setting.value}});
  return refused(fmt::format("expected a divisor of the {} ranks of tp_degree; set {}", tp, tp));
}

/// Megatron has no least number of tokens, and drops in validation, too.
Decision expert_capacity(const RuleInput& input) {
  const auto& factor = input.setting.value;
  return translated_if_effective({{"moe.capacity_factor", factor},
                                  {"moe.eval_capacity_factor", factor},
                                  {"moe.min_capacity", "0"}},
                                 "counted in each row instead of each rank's micro-batch");
}

Decision drop_policy(const RuleInput& input) {
  return translated_if_effective({{"moe.drop_policy", input.setting.value}});
}

Decision padded_experts(const RuleInput& input) {
  if (input.setting.value == "false") return honoured();
  return not_applicable("rows of experts need no padding");
}

Decision input_jitter(const RuleInput& input) {
  return translated({{"moe.input_jitter", input.setting.value}});
}

Decision overlapped_exchange(const RuleInput& input) {
  const bool overlaps = input.setting.value == "true";
  return translated_if_effective({{"moe.overlap_degree", overlaps ? "2" : "1"}},
                                 "within each mixture");
}

Decision shared_expert_overlap(const RuleInput&) {
  return not_applicable("a shared expert is always computed while rows travel");
}

Decision tensor_degree(const RuleInput& input) {
  return translated({{"parallel.tp", input.setting.value}});
}

Decision pipeline_degree(const RuleInput& input) {
  return translated({{"parallel.pp", input.setting.value}});
}

Decision micro_batches(const RuleInput& input) {
  const auto& count = input.setting.value;
  return translated({}, "train.micro_batch=" + (count == "1" ? "0" : "share of a rank / " + count));
}

Decision distributed_optimizer(const RuleInput& input) {
  const bool split = input.setting.value == "true";
  return translated({{"parallel.placement", split ? "shard_optimizer" : "replicate"}});
}

Decision recompute_activations(const RuleInput& input) {
  const auto granularity = input.settings.find(kPrefix + "recompute_granularity");
  if (granularity != nullptr) return honoured("recompute_granularity says how");
  const bool again = input.setting.value == "true";
  return translated({{"memory.checkpointing", again ? "selective" : "none"}});
}

Decision recompute_granularity(const RuleInput& input) {
  return translated({{"memory.checkpointing", input.setting.value}});
}

/// The rule of keys that count for granularity full: every block by itself is all that there is
/// here.
Decision recompute_blocks(const RuleInput& input) {
  if (input.text(kPrefix + "recompute_granularity") != "full") {
    return not_applicable("counts for recompute_granularity full");
  }
  if (input.setting.value == "uniform" || input.setting.value == "1") return honoured();
  return refused("each block is computed again by itself; set uniform and 1");
}

Decision offload_optimizer(const RuleInput& input) {
  return translated({{"parallel.offload_optimizer", input.setting.value}});
}

/// The rule of what cannot be done here: honoured if it is off, refused if it is on.
Decision switched_off(const RuleInput& input) {
  if (input.setting.value == "false" || input.setting.value == "0") return honoured();
  static const std::map<std::string, std::string> why{
      {"use_custom_fsdp", "set distributed_type: FSDP instead"},
      {"no_load_optim", "a checkpoint's optimizer is always read; remove it"},
      {"no_save_optim", "a checkpoint's optimizer is always written; remove it"},
      {"eod_mask_loss", "the loss counts every token; remove it"},
      {"use_precision_aware_optimizer", "set precision.optimizer_states in the job file"},
      {"attention_dropout", "attention has no dropout; set 0"},
      {"hidden_dropout", "set model.dropout in the job file"}};
  return refused(why.at(input.setting.key.substr(kPrefix.size())));
}

Decision always_so(const RuleInput& input) {
  if (input.setting.value == "true") return honoured("always so");
  return not_applicable("always true");
}

Decision sequence_parallelism(const RuleInput& input) {
  if (input.settings.integer(kPrefix + "tp_degree") == 1) {
    return not_applicable("counts for tp_degree above 1");
  }
  return translated({{"parallel.sequence_parallel", input.setting.value}});
}
Decision last_stage(const RuleInput& input) {
  if (input.text(kPrefix + "pp_degree") == "1") {
    return not_applicable("counts for pp_degree above 1");
  }
  return refused("set the layers of every stage, --parallel.stage_layers=[..]");
}
Decision overlap(const RuleInput&) { return not_applicable("copies are always in the background"); }
Decision of_the_model(const RuleInput&) { return not_applicable("the model's own matter"); }

}  // namespace

const Rules& megatron_lm_rules() {
  static const Rules rules = [] {
    Rules own{
        {kPrefix + "tp_degree", tensor_degree},
        {kPrefix + "pp_degree", pipeline_degree},
        {kPrefix + "expert_model_parallel_size", expert_degree},
        {kPrefix + "expert_tensor_parallel_size", expert_tensor_degree},
        {kPrefix + "moe_expert_capacity_factor", expert_capacity},
        {kPrefix + "moe_token_drop_policy", drop_policy},
        {kPrefix + "moe_pad_expert_input_to_capacity", padded_experts},
        {kPrefix + "moe_input_jitter_eps", input_jitter},
        {kPrefix + "overlap_moe_expert_parallel_comm", overlapped_exchange},
        {kPrefix + "moe_shared_expert_overlap", shared_expert_overlap},
        {kPrefix + "context_parallel_size", context_degree},
        {kPrefix + "num_micro_batches", micro_batches},
        {kPrefix + "sequence_parallelism", sequence_parallelism},
        {kPrefix + "recompute_activations", recompute_activations},
        {kPrefix + "recompute_granularity", recompute_granularity},
        {kPrefix + "recompute_method", recompute_blocks},
        {kPrefix + "recompute_num_layers", recompute_blocks},
        {kPrefix + "use_distributed_optimizer", distributed_optimizer},
        {kPrefix + "gradient_clipping", max_grad_norm},
        {kPrefix + "optimizer_cpu_offload", offload_optimizer},
        {kPrefix + "overlap_cpu_optimizer_d2h_h2d", overlap},
        {kPrefix + "decoder_last_pipeline_num_layers", last_stage},
        {kPrefix + "use_custom_fsdp", switched_off},
        {kPrefix + "no_load_optim", switched_off},
        {kPrefix + "no_save_optim", switched_off},
        {kPrefix + "eod_mask_loss", switched_off},
        {kPrefix + "use_precision_aware_optimizer", switched_off},
        {kPrefix + "attention_dropout", switched_off},
        {kPrefix + "hidden_dropout", switched_off},
        {kPrefix + "attention_softmax_in_fp32", always_so},
        {kPrefix + "calculate_per_token_loss", always_so},
        {kPrefix + "attention_backend", of_the_model},
        {kPrefix + "use_rotary_position_embeddings", of_the_model},
    };
    own.insert(megatron_fp8_rules().begin(), megatron_fp8_rules().end());
    return own;
  }();
  return rules;
}

}  // namespace tessera::config::accelerate
