#include "tests/combinations/values.h"

#include <algorithm>
#include <variant>

#include "tessera/schedule/generate.h"

namespace tessera::combinations {
namespace {

Tried function(std::vector<std::string> values = {}) {
  return {.role = Role::function, .values = std::move(values), .why = ""};
}
Tried layout(std::vector<std::string> values = {}) {
  return {.role = Role::layout, .values = std::move(values), .why = ""};
}
/// An entry for values that are chosen together with others (draw.cpp, trial.cpp).
Tried drawn(Role role) { return {.role = role, .values = {}, .why = "drawn with others"}; }
Tried fixed(std::string why) { return {.role = Role::fixed, .values = {}, .why = std::move(why)}; }

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const auto& facts : schedule::families()) names.push_back(facts.name);
  return names;
}

}  // namespace

const std::map<std::string, Tried>& tried() {
  static const std::string
      kShape = "the shape is drawn as a whole, as a config.json",
      kKept = "a resumed run needs the checkpoints that it would remove",
      kStored = "stored adapters are in tests/parity",
      kFp8 = "with precision.matmul, in tests/parity/fp8_parity_test.cpp",
      kStorage = "parts of a tensor share scales: tests/parity/precision_presets_test.cpp",
      kQuiet = "what one sees of a run; tests/program looks at it";
  static const std::map<std::string, Tried> entries{
      {"model.preset", fixed(kShape)},
      {"model.path", drawn(Role::function)},
      {"model.type", fixed(kShape)},
      {"model.init", fixed("pretrained weights are in tests/parity")},
      {"model.weights", drawn(Role::function)},
      {"model.weights_block", function({"128", "256"})},
      {"model.seed", function({"7"})},
      {"model.init_std", function({"0.05"})},
      {"model.vocab_size", fixed(kShape)},
      {"model.num_layers", fixed(kShape)},
      {"model.dim", fixed(kShape)},
      {"model.ffn_dim", fixed(kShape)},
      {"model.num_heads", fixed(kShape)},
      {"model.num_kv_heads", fixed(kShape)},
      {"model.tie_embeddings", fixed(kShape)},
      {"model.dropout", drawn(Role::function)},
      {"adapter.type", function({"lora", "dora"})},
      {"adapter.path", fixed(kStored)},
      {"adapter.base", fixed(kStored)},
      {"adapter.rank", function({"2", "4"})},
      {"adapter.alpha", function({"3"})},
      {"adapter.dropout", function({"0.2"})},
      {"adapter.rslora", function()},
      // Names of every family's, or of some.
      {"adapter.targets", function({"[all-linear]", "[\".*(q_proj|down_proj|mlp[.]c_proj)\"]",
                                    "[\".*(embed_tokens|wte|up_proj|c_attn)\"]"})},
      {"adapter.exclude", function({"[\".*[.]0[.].*\"]"})},
      {"adapter.layers", function({"[0]"})},
      {"adapter.rank_pattern", function({"{\".*proj|.*c_.*\": 3}"})},
      {"adapter.alpha_pattern", function({"{\".*proj|.*c_.*\": 5}"})},
      {"adapter.modules_to_save", function({"[norm]", "[lm_head]", "[ln_f]"})},
      {"adapter.bias", function()},
      {"adapter.init", function()},
      {"adapter.pissa_iterations", function({"2"})},
      {"adapter.lr_ratio", function({"4"})},
      {"adapter.expert_format", fixed("what an export writes: tests/parity/peft_experts_test.cpp")},
      {"data.train", drawn(Role::function)},
      {"data.weights", function({"[2, 1]", "[0.2, 0.8]"})},
      {"data.validation", fixed("part of the training data is held out")},
      {"data.choices", fixed("what is asked changes nothing that is learned")},
      {"data.validation_fraction", function({"0.02", "0.1"})},
      {"data.format", function({"auto", "records"})},
      {"data.token_dtype", function({"uint16"})},
      {"data.extensions", fixed("the data are tokens")},
      {"data.tokenizer", drawn(Role::function)},
      {"data.chat_template", drawn(Role::function)},
      {"data.shape", function({"messages"})},
      {"data.learn", function({"last", "all"})},
      {"data.too_long", function({"drop"})},
      {"data.packing", function()},
      {"data.skip_bad_lines", function()},
      {"data.max_documents", function({"150"})},
      {"data.document_mask", function()},
      {"data.document_end", function({"7", "32"})},
      {"data.seq_len", function({"16", "40", "48"})},
      {"data.shuffle", function()},
      {"data.seed", function({"9"})},
      {"preference.loss", function({"sigmoid", "ipo", "orpo"})},
      {"preference.beta", function({"0.5"})},
      {"preference.label_smoothing", function({"0.1"})},
      {"optimizer.type", function()},
      {"optimizer.learning_rate", function({"3e-4", "3e-3"})},
      {"optimizer.beta1", function({"0.8"})},
      {"optimizer.beta2", function({"0.99"})},
      // Small ones make noise of gradients that are zero in theory (biases of keys) into updates.
      {"optimizer.eps", function({"1e-4"})},
      {"optimizer.momentum", function({"0.9"})},
      {"optimizer.muon_momentum", function({"0.8"})},
      {"optimizer.muon_nesterov", function()},
      {"optimizer.muon_steps", function({"3"})},
      {"optimizer.muon_scale", function()},
      {"optimizer.weight_decay", function({"0", "0.3"})},
      {"optimizer.decay_norms_and_biases", function()},
      {"optimizer.max_grad_norm", function({"0", "0.3"})},
      {"optimizer.in_backward", layout()},
      {"schedule.type", function()},
      {"schedule.warmup_steps", function({"2"})},
      {"schedule.min_ratio", function({"0.5"})},
      {"schedule.decay_steps", function({"1"})},
      {"parallel.num_ranks", drawn(Role::layout)},
      {"parallel.placement", layout()},
      {"parallel.dp_replicate", drawn(Role::layout)},
      {"parallel.dp_shard", drawn(Role::layout)},
      {"parallel.tp", drawn(Role::layout)},
      {"parallel.sequence_parallel", layout()},
      {"parallel.pp", drawn(Role::layout)},
      {"parallel.ep", drawn(Role::layout)},
      {"parallel.etp", drawn(Role::layout)},
      {"parallel.pipeline_schedule", layout(schedule_names())},
      {"parallel.stages_per_rank", layout({"1", "2", "3"})},
      {"parallel.stage_layers", drawn(Role::layout)},
      {"parallel.stage_balance", layout()},
      {"parallel.units", layout()},
      {"parallel.min_num_params", layout({"500", "3000", "20000"})},
      {"parallel.unit_patterns", layout({"['*mlp*']", "['*attn*']", "['*mlp*', '*attn*']",
                                         "['*.1']", "['*proj', '*.c_fc']"})},
      {"parallel.reshard_after_forward", layout({"false", "2"})},
      {"parallel.backward_prefetch", layout()},
      {"parallel.forward_prefetch", layout()},
      {"parallel.max_gathered_units", layout({"1", "2"})},
      {"parallel.offload_params", layout()},
      {"parallel.offload_optimizer", layout()},
      {"parallel.offload_gradients", layout()},
      {"offload.paths", fixed("folders: empty is each trial's own")},
      {"offload.buffers", layout({"2", "3", "32"})},
      {"offload.host_memory", layout({"1"})},
      {"offload.block_size", layout({"4", "16"})},
      {"offload.queue_depth", layout({"1", "4"})},
      {"offload.any_file_system", layout()},
      {"offload.io_timeout_seconds", fixed("deadlines are in tessera_offload_test")},
      {"parallel.offload_fraction", layout({"0", "0.5"})},
      {"parallel.sync_module_states", fixed("pretrained weights are in tests/parity")},
      {"parallel.backend", layout({"gloo"})},
      {"parallel.interface",
       fixed("of runs over several machines: tests/integration/two_machines.sh")},
      {"parallel.timeout_seconds", fixed("deadlines are in tests/integration")},
      {"parallel.threads_per_rank", layout({"2"})},
      {"precision.preset", fixed(kStorage)},
      {"moe.aux_loss", drawn(Role::function)},
      {"moe.aux_coefficient", drawn(Role::function)},
      {"moe.z_coefficient", drawn(Role::function)},
      {"moe.selection_bias_rate", drawn(Role::function)},
      {"moe.force_balance", fixed("for benchmarks")},
      {"moe.capacity_factor", drawn(Role::function)},
      {"moe.eval_capacity_factor", drawn(Role::function)},
      {"moe.min_capacity", drawn(Role::function)},
      {"moe.drop_policy", drawn(Role::function)},
      {"moe.input_jitter", drawn(Role::function)},
      {"moe.sampling", drawn(Role::function)},
      {"moe.overlap_degree", layout({"2", "3"})},
      {"precision.compute", function()},
      {"precision.autocast", function()},
      {"precision.reduce", function()},
      {"precision.parameters", function({"fp32", "bf16"})},
      {"precision.optimizer_states", function({"fp32", "bf16"})},
      {"precision.stochastic_rounding", function()},
      {"precision.weights", fixed(kStorage)},
      {"precision.gradients", fixed(kStorage)},
      {"precision.communication", fixed(kStorage)},
      {"precision.matmul",
       fixed("numbers share scales as ranks divide them, so losses of layouts differ by roundings: "
             "tests/parity/fp8_parity_test.cpp")},
      {"precision.fp8_keep", fixed(kFp8)},
      {"precision.fp8_pad", fixed(kFp8)},
      {"precision.fp8_format", fixed(kFp8)},
      {"precision.fp8_amax_history", fixed(kFp8)},
      {"precision.fp8_amax", fixed(kFp8)},
      {"precision.fp8_margin", fixed(kFp8)},
      {"precision.fp8_interval", fixed(kFp8)},
      {"precision.fp8_emulate", fixed(kFp8)},
      {"memory.checkpointing", layout()},
      {"memory.checkpoint_every", layout({"2", "3"})},
      {"memory.offload_activations", layout({"nvme"})},
      {"checkpoint.dir", fixed("each run has its own")},
      {"checkpoint.every", layout({"1", "2"})},
      {"checkpoint.every_minutes", fixed("runs take seconds")},
      {"checkpoint.at_end", fixed("the weights are read from it")},
      {"checkpoint.async", layout()},
      {"checkpoint.verify", layout()},
      {"checkpoint.keep_last", fixed(kKept)},
      {"checkpoint.keep_every", fixed(kKept)},
      {"checkpoint.keep_best", fixed(kKept)},
      {"checkpoint.resume", drawn(Role::layout)},
      {"checkpoint.strict", fixed("a resumed run finds every tensor")},
      {"checkpoint.overwrite", fixed(kKept)},
      {"train.steps", function({"3", "6"})},
      {"train.epochs", fixed("every trial says train.steps; tests/parity resumes epochs")},
      {"train.global_batch", function({"24"})},
      {"train.micro_batch", layout({"1", "2", "3", "4", "6"})},
      {"train.run_dir", drawn(Role::layout)},
      {"train.validate_every", function({"2"})},
      {"train.validate_on_start", layout()},
      {"train.validation_batches", function({"3"})},
      {"train.early_stopping_patience", function({"1"})},
      {"train.early_stopping_threshold", function({"0.05"})},
      {"train.sample_tokens", layout({"3"})},
      {"train.sample_prompt", fixed(kQuiet)},
      {"train.sample_answers", fixed("of conversations alone; tests/program asks")},
      {"train.report_unused_parameters", layout()},
      {"train.nonfinite", function()},
      {"logging.every", fixed(kQuiet)},
      {"logging.tensorboard", layout()},
      {"logging.report_to", layout({"csv", "mlflow", "[csv, mlflow]"})},
      {"logging.svg", layout()},
      {"logging.progress", fixed(kQuiet)},
      {"logging.profile_step", layout({"0", "2"})},
  };
  return entries;
}

std::vector<std::string> values_of(const config::Field& field) {
  const auto& [role, values, why] = tried().at(field.key);
  if (!values.empty() || !why.empty()) return values;
  config::RunConfig config;
  if (std::holds_alternative<bool*>(field.slot(config))) return {"false", "true"};
  return field.rule.choices;
}

const Settings& base_settings() {
  static const Settings settings{
      {"data.format", "tokens"},
      {"data.seq_len", "24"},
      {"data.validation_fraction", "0.05"},
      {"optimizer.eps", "1e-5"},
      {"optimizer.learning_rate", "1e-3"},
      {"parallel.num_ranks", "1"},
      {"parallel.threads_per_rank", "1"},
      {"parallel.timeout_seconds", "60"},
      {"train.global_batch", "12"},
      {"train.sample_tokens", "0"},
      {"train.steps", "4"},
      {"train.validation_batches", "1"},
      {"logging.progress", "none"},
      {"logging.svg", "false"},
      {"logging.tensorboard", "false"},
  };
  return settings;
}

}  // namespace tessera::combinations
