#include "tessera/config/fields.h"

#include <utility>

#include "tessera/config/needs.h"
#include "tessera/models/spec.h"

namespace tessera::config {
namespace {

Range at_least(double low) { return {.low = low}; }
Range above(double low) { return {.low = low, .low_open = true}; }
Range between(double low, double high) { return {.low = low, .high = high}; }
Range below(double low, double high) { return {.low = low, .high = high, .high_open = true}; }
Range or_also(int64_t also, Range range) {
  range.also = also;
  return range;
}

template <typename T>
Slot slot_of(T* value) {
  if constexpr (HasTexts<T>) {
    return ChoiceSlot(value);
  } else {
    return value;
  }
}

/// Appends fields to one section: the key's first half and the outer member are said once.
template <typename Options>
class SectionBuilder {
 public:
  SectionBuilder(std::string name, Options RunConfig::*options, std::string meaning)
      : section_{std::move(name), std::move(meaning), {}}, options_(options) {}

  /// `Owner` is Options, or a base of it.
  template <typename T, typename Owner>
  SectionBuilder& add(const std::string& name, T Owner::*member, std::string meaning, Needs needs,
                      FieldRule rule = {}) {
    if constexpr (HasTexts<T>) {
      if (rule.choices.empty()) rule.choices = texts_of<T>();
    }
    section_.fields.push_back({.key = section_.name + "." + name,
                               .meaning = std::move(meaning),
                               .needs = std::move(needs),
                               .rule = std::move(rule),
                               .slot = [options = options_, member](RunConfig& c) {
                                 return slot_of(&(c.*options.*member));
                               }});
    return *this;
  }

  Section build() { return std::move(section_); }

 private:
  Section section_;
  Options RunConfig::*options_;
};

const Needs kAlways;

std::vector<std::string> model_types() {
  auto types = models::model_types();
  types.insert(types.begin(), "auto");
  return types;
}

Section model_section() {
  using S = ModelSection;
  return SectionBuilder("model", &RunConfig::model, "Which model, and its first weights.")
      .add("preset", &S::preset, "shape known by name", {kNoPath},
           {.choices = models::model_preset_names(), .aliases = {"name"}})
      .add("path", &S::path,
           "folder with config.json and, if init is pretrained, *.safetensors; takes the place of "
           "preset",
           kAlways, {.aliases = {"pretrained_model_name_or_path", "model_name_or_path"}})
      .add("type", &S::type,
           "model_type that config.json (or the preset) must have; auto: whichever it has", kAlways,
           {.choices = model_types(), .aliases = {"model_type", "architecture", "family"}})
      .add("init", &S::init,
           "random: weights from (seed, name, position); pretrained: read from path", kAlways)
      .add("weights", &S::weights,
           "how the linear layers of blocks are kept, which then are not trained: 4 bits (nf4; "
           "nf4_double: absmax in 8 bits, too; fp4) or 8 (int8), quantised when they are loaded; "
           "as_stored: in precision.parameters",
           kAlways, {.aliases = {"bnb_4bit_quant_type", "quantization", "quantize"}})
      .add("weights_block", &S::weights_block, "elements of a 4-bit weight that share an absmax",
           {kFourBitWeights}, {.range = {64, 4096}, .aliases = {"blocksize"}})
      .add(
          "seed", &S::seed,
          "of the random initial weights, of dropout, of stochastic rounding and of routers' noise",
          {kRandomNumbers}, {.range = at_least(0)})
      .add("init_std", &S::init_std, "standard deviation of the random initial weights",
           {kRandomWeights}, {.range = above(0), .aliases = {"initializer_range"}})
      .add("vocab_size", &S::vocab_size, "instead of the shape's number of tokens", kAlways,
           {.range = at_least(1)})
      .add("num_layers", &S::num_layers, "instead of the shape's number of blocks", kAlways,
           {.range = at_least(1),
            .aliases = {"n_layers", "n_layer", "num_hidden_layers", "layers", "depth"}})
      .add("dim", &S::dim, "instead of the shape's width", kAlways,
           {.range = at_least(1), .aliases = {"hidden_size", "n_embd", "d_model", "width"}})
      .add("ffn_dim", &S::ffn_dim, "instead of the shape's width inside the feed-forward part",
           kAlways, {.range = at_least(1), .aliases = {"intermediate_size", "n_inner", "d_ff"}})
      .add("num_heads", &S::num_heads, "instead of the shape's number of query heads", kAlways,
           {.range = at_least(1), .aliases = {"num_attention_heads", "n_heads", "n_head", "heads"}})
      .add("num_kv_heads", &S::num_kv_heads, "instead of the shape's number of key and value heads",
           kAlways, {.range = at_least(1), .aliases = {"num_key_value_heads", "n_kv_heads"}})
      .add("tie_embeddings", &S::tie_embeddings,
           "instead of the shape's choice: head and embedding share one table", kAlways,
           {.aliases = {"tie_word_embeddings"}})
      .add("dropout", &S::dropout,
           "gpt2: probability with which numbers of the embeddings and of each block's two results "
           "are dropped in training",
           kAlways,
           {.range = below(0, 1), .aliases = {"resid_pdrop", "embd_pdrop", "dropout_rate"}})
      .build();
}

Section adapter_section() {
  using S = AdapterSection;
  return SectionBuilder("adapter", &RunConfig::adapter,
                        "A few numbers trained beside a model that stays as it is, as PEFT does it "
                        "(adapters.md).")
      .add("type", &S::type,
           "none: the model is trained; lora: Hu et al. 2022; dora: Liu et al. 2024", kAlways,
           {.aliases = {"adapter", "finetuning_type", "peft_type", "use_dora", "peft_use_dora"}})
      .add("path", &S::path,
           "folder of an adapter as PEFT has it (tessera export RUN --to peft) to go on from; its "
           "settings are kept",
           {kAdapter}, {.aliases = {"lora_model_dir", "adapter_name_or_path", "adapter_path"}})
      .add("base", &S::base,
           "folders of adapters as PEFT has them that stay as they are, added into the base one "
           "after the other: a new one is trained upon them",
           {kAdapter})
      .add("rank", &S::rank, "rows of A, columns of B", {kNewAdapter},
           {.range = at_least(1), .aliases = {"r", "lora_r", "lora_rank"}})
      .add("alpha", &S::alpha, "the adapter's part is scaled by alpha / rank", {kNewAdapter},
           {.range = above(0), .aliases = {"lora_alpha"}})
      .add("dropout", &S::dropout, "probability with which numbers that enter A are dropped",
           {kAdapter}, {.range = below(0, 1), .aliases = {"lora_dropout"}})
      .add("rslora", &S::rslora,
           "scaled by alpha / rank^0.5 instead (Kalajdzievski 2023), for large ranks",
           {kNewAdapter}, {.aliases = {"use_rslora", "peft_use_rslora"}})
      .add("targets", &S::targets,
           "modules that get one: names ([q_proj, v_proj]), paths, a regular expression for whole "
           "paths, or all-linear; empty: the family's usual ones (q_proj and v_proj; gpt2: c_attn)",
           {kNewAdapter},
           {.aliases = {"target_modules", "lora_target_modules", "lora_target",
                        "lora_target_linear"}})
      .add("exclude", &S::exclude, "modules of these that get none, written likewise",
           {kNewAdapter}, {.aliases = {"exclude_modules"}})
      .add("layers", &S::layers, "blocks whose modules get one, such as [0, 1]; empty: all",
           {kNewAdapter},
           {.range = at_least(0), .aliases = {"layers_to_transform", "peft_layers_to_transform"}})
      .add("rank_pattern", &S::rank_pattern,
           "ranks of some modules, such as {q_proj: 16}: the first regular expression that matches "
           "a path's end counts",
           {kNewAdapter}, {.range = at_least(1), .aliases = {"lora_rank_pattern"}})
      .add("alpha_pattern", &S::alpha_pattern, "alphas of some modules, likewise", {kNewAdapter},
           {.range = above(0), .aliases = {"lora_alpha_pattern"}})
      .add("modules_to_save", &S::modules_to_save,
           "modules trained whole: those whose path ends with one of these, such as [lm_head]",
           {kNewAdapter}, {.aliases = {"lora_modules_to_save", "additional_target"}})
      .add("bias", &S::bias, "biases that are trained, too; lora_only: of modules with an adapter",
           {kNewAdapter}, {.aliases = {"lora_bias"}})
      .add("init", &S::init,
           "first values; a run starts with the model as it is. Of A, B being zero: kaiming: "
           "uniform within inputs^-0.5; gaussian: of deviation 1 / rank. Of both: orthogonal: with "
           "a product of zero; pissa: the matrix's largest singular values, whose rest is the base "
           "(Meng et al. 2024)",
           {kNewAdapter}, {.aliases = {"init_lora_weights", "peft_init_lora_weights"}})
      .add("pissa_iterations", &S::pissa_iterations,
           "subspace iterations in place of all singular values, which take long (PEFT's "
           "pissa_niter_16: 16); 0: all",
           {kPissa}, {.range = at_least(0)})
      .add("lr_ratio", &S::lr_ratio,
           "learning rate of B divided by that of A (LoRA+, Hayou et al. 2024: 16)", {kAdapter},
           {.range = above(0), .aliases = {"loraplus_lr_ratio"}})
      .add("expert_format", &S::expert_format,
           "how tessera export --to peft writes adapters of a mixture's experts. fused: of the "
           "tensors of all experts that transformers 5 has (target_parameters, PEFT 0.17); "
           "per_expert: by the names of older releases",
           {kAdapter})
      .build();
}

Section data_section() {
  using S = DataSection;
  return SectionBuilder("data", &RunConfig::data, "What is read, and in which order.")
      .add("train", &S::train,
           "files, folders or data sets of the Hugging Face Hub (org/data, org/data:split) to "
           "learn from; at least one",
           kAlways, {.aliases = {"path", "paths", "files", "train_files", "dataset", "train_data"}})
      .add("weights", &S::weights,
           "one for each entry of train: shares of the rows drawn from each, small ones repeated; "
           "empty: all rows alike",
           kAlways, {.range = above(0), .aliases = {"mixture", "mix", "blend", "probabilities"}})
      .add("validation", &S::validation,
           "files, folders or data sets held out; empty: validation_fraction of train", kAlways,
           {.aliases = {"val", "valid", "eval", "validation_files"}})
      .add("validation_fraction", &S::validation_fraction,
           "share of train that is held out when validation is empty, in stretches spread evenly "
           "over it",
           {kNoValidationFiles},
           {.range = below(0, 1), .aliases = {"val_fraction", "validation_split"}})
      .add("choices", &S::choices,
           "questions with a choice of answers, which each validation asks: acc, acc_norm",
           {kValidates}, {.aliases = {"multiple_choice"}})
      .add("format", &S::format,
           "tokens: .bin of nanoGPT or llm.c; megatron: .bin and .idx; text: bytes; records: JSON "
           "lines, JSON, CSV, TSV; auto: by name and header",
           kAlways)
      .add("token_dtype", &S::token_dtype,
           "of token files; auto: as an llm.c header says, else uint16", {kTokenFiles},
           {.aliases = {"dtype"}})
      .add("extensions", &S::extensions,
           "of the files taken from folders as text, such as [.h, .cpp]; empty: all files",
           {kTextFiles})
      .add("tokenizer", &S::tokenizer,
           "of records and choices: a model's folder, or a tokenizer's file; empty: model.path",
           {kRecordsOrChoices}, {.aliases = {"tokenizer_path", "tokenizer_name"}})
      .add("chat_template", &S::chat_template,
           "of records: a file with one, or the name of one of the model's; empty: its default",
           {kRecords}, {.aliases = {"template", "chat_template_path", "chat_template_jinja"}})
      .add("shape", &S::shape,
           "what a row is: text; prompt and completion; messages of role and content; "
           "conversations of from and value (ShareGPT); instruction, input and output (Alpaca); "
           "preference: chosen and rejected; auto: by its keys",
           {kRecords})
      .add(
          "learn", &S::learn,
          "assistant: what the assistant says, completions and whole texts; last: its last "
          "answer; marked: messages with \"train\": true or a \"weight\" above 0; all: every token",
          {kRecords})
      .add("too_long", &S::too_long,
           "what becomes of a row with more tokens than seq_len: cut, drop or error", {kRecords},
           {.aliases = {"excess_length_strategy", "truncation_mode"}})
      .add("packing", &S::packing,
           "several documents in a row, each of which sees itself alone; false: a row each",
           {kRecords}, {.aliases = {"sample_packing", "neat_packing"}})
      .add("skip_bad_lines", &S::skip_bad_lines,
           "count broken rows and leave them out; false: the first one is an error", {kRecords})
      .add("max_documents", &S::max_documents,
           "the first so many rows of records, under weights of each entry; 0: all", {kRecords},
           {.range = at_least(0), .aliases = {"max_samples", "limit"}})
      .add("seq_len", &S::seq_len, "tokens in one sequence", kAlways,
           {.range = at_least(1),
            .aliases = {"sequence_length", "seq_length", "block_size", "context_length",
                        "max_seq_len", "max_length"}})
      .add(
          "document_mask", &S::document_mask,
          "of token files and text: attention stays inside of each document, positions begin anew, "
          "and what follows another document's end is not predicted",
          {kNoRecords}, {.aliases = {"reset_attention_mask", "reset_position_ids"}})
      .add(
          "document_end", &S::document_end,
          "the token that ends a document; without one, byte 0 of text, which stands between files",
          {kDocumentMask}, {.range = at_least(0), .aliases = {"eod_token", "eot_token"}})
      .add("shuffle", &S::shuffle, "false: sequences in the order of the files", kAlways)
      .add("seed", &S::seed, "of the order of sequences", {kShuffles},
           {.range = at_least(0), .aliases = {"shuffle_seed"}})
      .build();
}

Section preference_section() {
  using S = PreferenceSection;
  return SectionBuilder("preference", &RunConfig::preference,
                        "Learning from pairs of a chosen and a rejected answer.")
      .add("loss", &S::loss,
           "none: cross-entropy of each token; sigmoid: DPO (Rafailov et al. 2023); ipo: Azar et "
           "al. 2024, by length; orpo: Hong et al. 2024, which needs no reference",
           {kRecords}, {.aliases = {"loss_type", "rl", "pref_loss", "dpo_loss_type"}})
      .add(
          "beta", &S::beta,
          "sigmoid and ipo: how close the model stays to what it was at the start (small: not very "
          "close); orpo: weight of the odds ratio beside the cross-entropy",
          {kPreference},
          {.range = above(0),
           .aliases = {"rl_beta", "pref_beta", "dpo_beta", "lambda", "orpo_alpha"}})
      .add(
          "label_smoothing", &S::label_smoothing,
          "sigmoid: share of the pairs whose answers are taken as mixed up (cDPO)", {kSigmoid},
          {.range = {.low = 0, .high = 0.5, .high_open = true}, .aliases = {"dpo_label_smoothing"}})
      .build();
}

/// What transformers calls them (OptimizerNames). Paged ones move their states to the host where a GPU has no room.
std::vector<std::pair<std::string, std::string>> optimizers_of_others() {
  const std::string paged = " with parallel.offload_optimizer true";
  return {{"adamw_torch", "adamw"},
          {"adamw_torch_fused", "adamw"},
          {"adamw_apex_fused", "adamw"},
          {"adamw_hf", "adamw"},
          {"adamw_8bit", "adamw8bit"},
          {"adamw_bnb_8bit", "adamw8bit"},
          {"paged_adamw", "adamw" + paged},
          {"paged_adamw_32bit", "adamw" + paged},
          {"paged_adamw_8bit", "adamw8bit" + paged},
          {"lion_32bit", "lion"},
          {"paged_lion", "lion" + paged},
          {"paged_lion_32bit", "lion" + paged}};
}

Section optimizer_section() {
  using S = OptimizerSection;
  return SectionBuilder("optimizer", &RunConfig::optimizer, "How weights follow gradients.")
      .add("type", &S::type,
           "adamw: Loshchilov and Hutter 2019; adamw8bit: its states in 8 bits, Dettmers et al. "
           "2022; sgd: with momentum; lion: Chen et al. 2023; muon: "
           "Jordan et al. 2024 on the matrices of blocks, adamw on the rest",
           kAlways, {.aliases = {"name", "optim"}, .others = optimizers_of_others()})
      .add("learning_rate", &S::learning_rate, "peak, reached after warm-up", kAlways,
           {.range = above(0), .aliases = {"lr", "max_lr", "peak_lr"}})
      .add("beta1", &S::beta1, "adamw, muon, lion (there usually 0.9): decay of the mean gradient",
           {kBetas}, {.range = below(0, 1), .aliases = {"betas", "adam_beta1"}})
      .add("beta2", &S::beta2,
           "adamw, muon: decay of the mean squared gradient; lion (usually 0.99): of the mean one",
           {kBetas}, {.range = below(0, 1), .aliases = {"adam_beta2"}})
      .add("eps", &S::eps, "adamw, muon: added to the denominator", {kAdamW},
           {.range = above(0), .aliases = {"epsilon", "adam_epsilon"}})
      .add("momentum", &S::momentum, "sgd: decay of the summed gradient", {kSgd},
           {.range = below(0, 1)})
      .add("muon_momentum", &S::muon_momentum, "muon: decay of the mean gradient of a matrix",
           {kMuon}, {.range = below(0, 1)})
      .add("muon_nesterov", &S::muon_nesterov, "muon: the gradient counts once more in its mean",
           {kMuon})
      .add("muon_steps", &S::muon_steps, "muon: steps of Newton and Schulz's iteration", {kMuon},
           {.range = between(1, 100), .aliases = {"ns_steps", "muon_num_ns_steps"}})
      .add("muon_scale", &S::muon_scale,
           "muon: size of an update; match_rms_adamw: as large as AdamW's; original: times "
           "(rows / columns)^0.5 where that is above 1",
           {kMuon}, {.aliases = {"adjust_lr_fn", "muon_scale_mode"}})
      .add("weight_decay", &S::weight_decay, "per step and unit of learning rate", kAlways,
           {.range = at_least(0), .aliases = {"wd"}})
      .add("decay_norms_and_biases", &S::decay_norms_and_biases,
           "true: weight decay on every parameter", {kDecays})
      .add("max_grad_norm", &S::max_grad_norm,
           "gradients are scaled down to this global norm; 0: never", kAlways,
           {.range = at_least(0),
            .aliases = {"grad_clip", "clip_grad", "gradient_clipping", "clip_grad_norm",
                        "max_norm"}})
      .add(
          "in_backward", &S::in_backward,
          "each unit is updated as soon as its gradient is reduced, which is freed then: gradients "
          "take the memory of two units; one micro-batch, and no clipping",
          {kNoMuon, kNoPipeline, kNoLossScale},
          {.aliases = {"optimizer_in_bwd", "optimizer_in_backward", "fused_backward"}})
      .build();
}

Section schedule_section() {
  using S = ScheduleSection;
  return SectionBuilder("schedule", &RunConfig::schedule,
                        "How the learning rate changes over the steps.")
      .add("type", &S::type, "after warm-up; wsd: constant, then a last phase of decay", kAlways,
           {.aliases = {"lr_scheduler_type", "name", "scheduler"}})
      .add("warmup_steps", &S::warmup_steps, "steps of linear rise to the peak", kAlways,
           {.range = at_least(0), .aliases = {"warmup", "num_warmup_steps", "warmup_iters"}})
      .add("min_ratio", &S::min_ratio, "learning rate at the end divided by the peak",
           {kFallingRate},
           {.range = between(0, 1), .aliases = {"min_lr", "min_lr_ratio", "final_ratio"}})
      .add("decay_steps", &S::decay_steps, "wsd: steps of the last phase; 0: a fifth of all steps",
           {kWsd}, {.range = at_least(0), .aliases = {"decay", "lr_decay_iters", "cooldown_steps"}})
      .build();
}

Section parallel_section() {
  using S = ParallelSection;
  return SectionBuilder("parallel", &RunConfig::parallel,
                        "How many ranks, and how they work together.")
      .add("num_ranks", &S::num_ranks,
           "processes that this machine starts; -1: one per GPU, or one per two cores on a CPU",
           kAlways,
           {.range = or_also(-1, between(1, 1024)),
            .aliases = {"world_size", "num_processes", "nproc", "nproc_per_node", "ranks",
                        "num_gpus", "devices"}})
      .add("placement", &S::placement,
           "replicate: DDP; shard_optimizer: ZeRO-1; shard_gradients: ZeRO-2, SHARD_GRAD_OP; "
           "full_shard: ZeRO-3, FSDP; with dp_replicate and dp_shard above 1: HSDP",
           kAlways, {.aliases = {"sharding_strategy", "zero_stage", "strategy"}})
      .add("dp_replicate", &S::dp_replicate,
           "copies of the model; -1: all ranks that are left if placement is replicate, else 1",
           kAlways,
           {.range = or_also(-1, at_least(1)),
            .aliases = {"dp", "data_parallel_size", "dp_size", "ddp"}})
      .add("dp_shard", &S::dp_shard,
           "ranks that share one copy; -1: 1 if placement is replicate, else all that are left",
           kAlways, {.range = or_also(-1, at_least(1)), .aliases = {"fsdp_size", "shard_size"}})
      .add("tp", &S::tp,
           "tensor parallelism: ranks that divide each matrix, neighbours of one machine; -1: all "
           "that are left (then dp_replicate and dp_shard are 1 unless set)",
           kAlways,
           {.range = or_also(-1, at_least(1)),
            .aliases = {"tp_size", "tp_degree", "tensor_parallel", "tensor_parallel_size",
                        "tensor_model_parallel_size"}})
      .add("sequence_parallel", &S::sequence_parallel,
           "tp above 1: norms, dropout and residuals are divided over positions, for less memory "
           "at the same traffic; data.seq_len must be a multiple of tp",
           {kTensorParallel}, {.aliases = {"sequence_parallelism", "enable_sequence_parallel"}})
      .add("pp", &S::pp,
           "pipeline parallelism: ranks that divide the layers; micro-batches (train.micro_batch) "
           "go from one to the next; -1: all ranks that are left",
           kAlways,
           {.range = or_also(-1, at_least(1)),
            .aliases = {"pp_size", "pp_degree", "pipeline_parallel", "pipeline_parallel_size",
                        "pipeline_model_parallel_size", "pipeline_parallel_degree"}})
      .add("ep", &S::ep,
           "expert parallelism: neighbouring data ranks (of dp_shard, or of dp_replicate where "
           "nothing is sharded) that share out the experts of each block, and ranks of tp that etp "
           "leaves; tokens go to theirs and back; adds no ranks",
           kAlways,
           {.range = at_least(1),
            .aliases = {"ep_size", "autoep_size", "expert_parallel_size", "expert_parallel_degree",
                        "expert_model_parallel_size", "expert_parallel", "moe_expert_parallel"}})
      .add("etp", &S::etp,
           "expert tensor parallelism: of the ranks of tp, those that divide each expert's "
           "matrices; the others share out tokens, and experts by ep; null: all",
           {kTensorParallel},
           {.range = at_least(1),
            .aliases = {"expert_tensor_parallel_size", "expert_tensor_parallel_degree",
                        "expert_tensor_parallel"}})
      .add("pipeline_schedule", &S::pipeline_schedule,
           "pp above 1: a name of `tessera schedule`, or a .csv file with a table of its own",
           {kPipeline},
           {.aliases = {"pipeline_parallel_schedule", "pipeline_parallel_schedule_csv"}})
      .add("stages_per_rank", &S::stages_per_rank,
           "pp above 1: parts of the model on each rank; 0: as few as the schedule takes",
           {kPipeline},
           {.range = between(0, 1024),
            .aliases = {"num_virtual_stages_per_pipeline_rank", "virtual_stages"}})
      .add("stage_layers", &S::stage_layers,
           "pp above 1: layers of each stage, such as [3, 3, 2]; 0 leaves the first the embedding "
           "alone, the last the head; empty: as stage_balance says",
           {kPipeline}, {.range = at_least(0)})
      .add("stage_balance", &S::stage_balance,
           "pp above 1: what stages share evenly: cost: operations of layers and head; layers: "
           "their number; measured: seconds, taken at the start",
           {kPipeline, kNoStageLayers})
      .add("units", &S::units,
           "what is gathered and reduced together: block: each block; size: the innermost modules "
           "of min_num_params; name: those that match unit_patterns; model: all",
           kAlways, {.aliases = {"auto_wrap_policy", "wrap_policy"}})
      .add("min_num_params", &S::min_num_params, "units: size: parameters of a unit at least",
           {kUnitsBySize}, {.range = at_least(1)})
      .add("unit_patterns", &S::unit_patterns,
           "units: name: module paths, * for anything, such as [model.layers.*]", {kUnitsByName})
      .add("reshard_after_forward", &S::reshard_after_forward,
           "full_shard: true: free whole parameters between forward and backward; false: keep "
           "them; k: keep 1/k, shared by k neighbouring ranks",
           {kFullShard, kUnitsToReshard})
      .add("backward_prefetch", &S::backward_prefetch,
           "gather the next unit of a backward before (pre) or after (post) the present one's "
           "gradients are computed",
           {kFullShard, kReshards, kSeveralUnits})
      .add("forward_prefetch", &S::forward_prefetch,
           "gather the next unit while one computes its forward", {kSharded, kSeveralUnits})
      .add("max_gathered_units", &S::max_gathered_units,
           "full_shard: no prefetch while so many units are whole",
           {kFullShard, kSeveralUnits, kPrefetches},
           {.range = at_least(1), .aliases = {"limit_all_gathers"}})
      .add("offload_params", &S::offload_params,
           "true: slices, their gradients and the optimizer live on the host; nvme, beside "
           "offload_optimizer nvme: slices are on drives, and come for their forward and backward",
           kAlways, {.aliases = {"cpu_offload"}})
      .add(
          "offload_optimizer", &S::offload_optimizer,
          "true: the same, but under full_shard a copy of the parameters' slices stays on the GPU; "
          "nvme: the optimizer's states, and weights that it keeps beside those of 16 bits, are on "
          "drives (section offload) and come part by part",
          {kNoOffloadedParams})
      .add("offload_gradients", &S::offload_gradients,
           "nvme: what is reduced of gradients is on drives until the step, beside "
           "offload_optimizer nvme",
           {kOffloadsToDrives, kFreesGradients, kAfterBackward, kNoPipeline})
      .add("offload_fraction", &S::offload_fraction,
           "share of the parameters that either of these concerns, in whole units, the last ones",
           {kOffloads}, {.range = between(0, 1), .aliases = {"ratio"}})
      .add("sync_module_states", &S::sync_module_states,
           "rank 0 reads pretrained weights, the others receive their slices", {kPretrained})
      .add("backend", &S::backend, "of the collectives; auto: nccl on GPUs, else gloo", kAlways)
      .add("interface", &S::interface,
           "network interface of Gloo on several machines, as eth0; empty: GLOO_SOCKET_IFNAME if "
           "set, else the one by which the master address is reached",
           kAlways, {.aliases = {"gloo_socket_ifname", "socket_ifname"}})
      .add("timeout_seconds", &S::timeout_seconds, "deadline of every collective", kAlways,
           {.range = between(0.001, 1e7), .aliases = {"timeout", "timeout_s"}})
      .add("threads_per_rank", &S::threads_per_rank,
           "0: OMP_NUM_THREADS if set, else cores / ranks", kAlways,
           {.range = between(0, 4096), .aliases = {"threads", "num_threads", "omp_num_threads"}})
      .build();
}

Section offload_section() {
  using S = OffloadSection;
  return SectionBuilder("offload", &RunConfig::offload,
                        "How what is kept on drives comes and goes (docs/offload.md).")
      .add("paths", &S::paths,
           "folders, one on each drive; a rank has a file in each, and its blocks go to them in "
           "turn; empty: train.run_dir/offload",
           {kOnDrives}, {.aliases = {"nvme_path", "path", "folders"}})
      .add("buffers", &S::buffers,
           "parts of states in memory at a time: one is updated, one written, the others are read "
           "ahead",
           {kOffloadsToDrives}, {.range = between(2, 1024), .aliases = {"buffer_count"}})
      .add("host_memory", &S::host_memory,
           "MiB of all buffers of a rank, shared by what is on drives", {kOnDrives},
           {.range = between(1, 1 << 30), .aliases = {"buffer_size"}})
      .add("block_size", &S::block_size, "KiB of one read or write, a multiple of 4", {kOnDrives},
           {.range = between(4, 1 << 20)})
      .add("queue_depth", &S::queue_depth, "reads and writes at a time on each rank", {kOnDrives},
           {.range = between(1, 4096)})
      .add("any_file_system", &S::any_file_system, "paths may be in memory (tmpfs) or on a network",
           {kOnDrives})
      .add("io_timeout_seconds", &S::timeout_seconds, "deadline of a read or write", {kOnDrives},
           {.range = between(0.001, 1e6)})
      .build();
}

Section precision_section() {
  using S = PrecisionSection;
  return SectionBuilder("precision", &RunConfig::precision, "In which dtypes a run computes.")
      .add(
          "preset", &S::preset,
          "settings that go together: what `tessera precision --table` shows; a key set to another "
          "value is an error",
          kAlways, {.aliases = {"opt_level"}})
      .add(
          "compute", &S::compute,
          "of products and activations; norms, softmax and loss stay in fp32; fp16 scales the loss",
          kAlways, {.aliases = {"mixed_precision", "dtype"}})
      .add("autocast", &S::autocast,
           "true: weights stay as they are and products cast (DDP's way); false: weights are "
           "gathered in the compute dtype (FSDP's)",
           {kLowPrecision})
      .add("reduce", &S::reduce, "gradients are accumulated and summed over ranks in it", kAlways,
           {.aliases = {"reduce_dtype"}})
      .add("parameters", &S::parameters,
           "what the optimizer updates; bf16 and fp16: no fp32 copy anywhere", kAlways,
           {.aliases = {"param_dtype", "master", "master_weights"}})
      .add("optimizer_states", &S::optimizer_states,
           "what adamw keeps; fp8+fp16: its mean in 8 bits, its mean square in 16, with scales",
           {kAdamWAlone})
      .add("stochastic_rounding", &S::stochastic_rounding,
           "parameters of 16 bits and states of bf16 or fp8+fp16 are rounded at random, so that "
           "small updates count",
           {kRoundedUpdates})
      .add("weights", &S::weights,
           "of the linear layers in blocks, where they are kept or gathered whole: as compute "
           "says, or "
           "fp8: E4M3 with a scale for each weight; the optimizer's part stays in parameters",
           {kLowPrecision, kGathersWeights},
           {.aliases = {"fp8_gather", "fp8_param_gather", "enable_fsdp_float8_all_gather"}})
      .add("gradients", &S::gradients,
           "as they are kept from their reduction to the step: fp8: E4M3 with a scale for each "
           "buffer of a unit",
           {kGradientsStay})
      .add("communication", &S::communication,
           "of gradients: in reduce, or fp8: sent as E4M3, added up in fp32", kAlways,
           {.aliases = {"grad_reduce_in_fp8"}})
      .add("matmul", &S::matmul,
           "of the linear layers in blocks, while they train: as compute says, or of numbers "
           "rounded to "
           "8-bit floats with a scale for each tensor (fp8_tensor; fp8_delayed: by earlier steps), "
           "each row (fp8_row; fp8_row_wgrad16: but the weights' gradients), 128 numbers "
           "(fp8_block) "
           "or 32 (mxfp8)",
           kAlways,
           {.aliases = {"fp8_recipe", "float8_recipe"},
            .others = {{"tensorwise", "fp8_tensor"},
                       {"delayed", "fp8_delayed"},
                       {"rowwise", "fp8_row"},
                       {"rowwise_with_gw_hp", "fp8_row_wgrad16"},
                       {"blockwise", "fp8_block"}}})
      .add("fp8_keep", &S::fp8_keep,
           "linear layers that stay in compute: patterns of their paths; first_last: those of the "
           "first and the last block; auto: those that gain nothing on a device with 8-bit units",
           {kFp8OrWeights}, {.aliases = {"filter_fqns", "first_last_layers_bf16"}})
      .add("fp8_pad", &S::fp8_pad,
           "layers whose sizes are no multiple of 16 (mxfp8: 32) are padded; false: an error",
           {kFp8}, {.aliases = {"pad_inner_dim"}})
      .add("fp8_format", &S::fp8_format, "gradients in E5M2 (hybrid) or in E4M3", {kFp8ByTensor})
      .add("fp8_amax_history", &S::fp8_amax_history, "steps whose largest numbers are kept",
           {kFp8Delayed},
           {.range = between(1, 1 << 16), .aliases = {"amax_history_len", "fp8_amax_history_len"}})
      .add("fp8_amax", &S::fp8_amax, "which of them a scale is made of", {kFp8Delayed},
           {.aliases = {"amax_compute_algo", "fp8_amax_compute_algo"}})
      .add("fp8_margin", &S::fp8_margin, "scales are divided by two to this power", {kFp8Delayed},
           {.range = between(0, 32)})
      .add("fp8_interval", &S::fp8_interval, "steps between new scales", {kFp8Delayed},
           {.range = at_least(1)})
      .add("fp8_emulate", &S::fp8_emulate,
           "auto: products by a GPU's 8-bit units, emulated on the CPU and where units lack the "
           "recipe; "
           "true: emulated, on older GPUs, too; false: an error where there are no such units",
           {kFp8}, {.aliases = {"emulate"}})
      .build();
}

Section moe_section() {
  using S = MoeSection;
  return SectionBuilder(
             "moe", &RunConfig::moe,
             "What keeps the experts of a mixture evenly used, and how many tokens each takes "
             "(moe.md): the same on any number of ranks and for any size of micro-batches.")
      .add("aux_loss", &S::aux_loss,
           "loss that is added for balance: E sum f_i P_i of each layer (Fedus et al. 2022) within "
           "each row (sequence) or over the global batch (batch; with several micro-batches a "
           "forward more per step); transformers: as its models count it, over all layers together",
           {kRoutersChoose},
           {.aliases = {"moe_router_load_balancing_type", "load_balancing_type"},
            .others = {{"aux_loss", "batch"},
                       {"seq_aux_loss", "sequence"},
                       {"global_aux_loss", "batch"}}})
      .add("aux_coefficient", &S::aux_coefficient, "what that loss is multiplied by", {kAuxLoss},
           {.range = above(0),
            .aliases = {"router_aux_loss_coef", "moe_aux_loss_coeff", "aux_loss_coef"}})
      .add("z_coefficient", &S::z_coefficient,
           "of the routers' z-loss, the mean square of log-sum-exp of their logits (Zoph et al. "
           "2022: 0.001), which keeps these small",
           kAlways, {.range = at_least(0), .aliases = {"moe_z_loss_coeff", "router_z_loss_coef"}})
      .add("selection_bias_rate", &S::selection_bias_rate,
           "after each step, by so much the bias that an expert is chosen by rises if it had fewer "
           "tokens of the global batch than the mean, or falls (Wang et al. 2024: 0.001); 0: it "
           "stays as it is",
           {kRoutersChoose},
           {.range = between(0, 1),
            .aliases = {"load_balance_coeff", "moe_router_bias_update_rate", "bias_update_rate"}})
      .add("force_balance", &S::force_balance,
           "experts take turns, whatever routers say: for benchmarks alone, nothing useful is "
           "learned",
           kAlways, {.aliases = {"moe_router_force_load_balancing", "moe_force_load_balance"}})
      .add("capacity_factor", &S::capacity_factor,
           "an expert takes ceil(T K / E times this) of the T tokens of a row at most, K being the "
           "experts of a token, E all; the others' choices are dropped. null: nothing is dropped",
           {kRoutersChoose},
           {.range = above(0),
            .aliases = {"moe_expert_capacity_factor", "expert_capacity_factor", "drop_tokens"}})
      .add("eval_capacity_factor", &S::eval_capacity_factor,
           "the same where nothing is learned: validation, samples. null: nothing is dropped there",
           {kRoutersChoose, kValidates}, {.range = above(0)})
      .add("min_capacity", &S::min_capacity, "an expert takes so many tokens of a row in any case",
           {kCapacity}, {.range = at_least(0), .aliases = {"minimum_capacity"}})
      .add("drop_policy", &S::drop_policy,
           "which tokens of a row stay with an expert that has no room for all: those with the "
           "highest scores (probs), the first (position), those whose first choice it is, then "
           "their second (choice), or drawn ones (random; of what is not trained the first)",
           {kCapacity}, {.aliases = {"moe_token_drop_policy", "token_drop_policy", "use_rts"}})
      .add("input_jitter", &S::input_jitter,
           "in training, what enters routers is multiplied by numbers drawn uniformly from 1 - "
           "this to 1 + this (Fedus et al. 2022: 0.01); what enters experts is not",
           kAlways,
           {.range = below(0, 1),
            .aliases = {"moe_input_jitter_eps", "router_jitter_noise", "jitter_eps", "jitter_noise",
                        "noisy_gate_policy"}})
      .add("sampling", &S::sampling,
           "which of a token's experts are drawn in training, each next one with the softmax of "
           "the logits that are left: none, all, or all but the best (but_first); weights are of "
           "the scores all the same",
           {kRoutersChoose}, {.aliases = {"top2_2nd_expert_sampling", "rsample", "gumbel"}})
      .add("overlap_degree", &S::overlap_degree,
           "parts into which a mixture's tokens are divided, so that one's rows travel while "
           "another's are computed; 1: nothing but a shared expert is computed meanwhile",
           {kExpertParallel},
           {.range = between(1, 64),
            .aliases = {"a2a_ffn_overlap_degree", "overlap_moe_expert_parallel_comm"}})
      .build();
}

Section memory_section() {
  using S = MemorySection;
  return SectionBuilder("memory", &RunConfig::memory, "Memory for time.")
      .add("checkpointing", &S::checkpointing,
           "what a block keeps for its backward: none: everything; full: its input; selective: "
           "results of products and attention; feed_forward: those up to the product behind "
           "attention; the rest is "
           "computed again",
           kAlways, {.aliases = {"activation_checkpointing", "gradient_checkpointing"}})
      .add("checkpoint_every", &S::checkpoint_every, "every so many blocks one is checkpointed",
           {kCheckpointsActivations}, {.range = at_least(1)})
      .add("offload_activations", &S::offload_activations,
           "what checkpointed blocks keep waits for their backward, true: in the host's memory (of "
           "a GPU), nvme: on drives (section offload)",
           {kCheckpointsActivations}, {.aliases = {"activation_offloading", "cpu_checkpointing"}})
      .build();
}

Section checkpoint_section() {
  using S = CheckpointSection;
  return SectionBuilder("checkpoint", &RunConfig::checkpoint,
                        "What is saved, how often, and from where a run goes on. SIGTERM and "
                        "SIGUSR1 save and end it with exit code 75, unless nothing is saved at "
                        "all.")
      .add("dir", &S::dir, "folder of the checkpoints; empty: checkpoints in train.run_dir",
           {kSavesOrResumes})
      .add("every", &S::every, "steps between checkpoints; 0: none along the way", kAlways,
           {.range = at_least(0),
            .aliases = {"save_every", "save_steps", "checkpointing_steps", "interval",
                        "save_interval", "every_steps"}})
      .add("every_minutes", &S::every_minutes, "minutes between checkpoints; 0: not by the clock",
           kAlways, {.range = at_least(0)})
      .add("at_end", &S::at_end, "save after the last step", kAlways)
      .add("async", &S::async,
           "training goes on while a copy of the slices is written (their size in memory once "
           "more)",
           {kSavesAlongTheWay}, {.aliases = {"async_save"}})
      .add("verify", &S::verify, "what is read back before a checkpoint counts as complete",
           {kSaves})
      .add("keep_last", &S::keep_last, "newest checkpoints that stay; 0: all", {kSaves},
           {.range = at_least(0), .aliases = {"total_limit", "save_total_limit", "keep"}})
      .add("keep_every", &S::keep_every,
           "besides, those of steps that this number divides; 0: none", {kKeepsLast},
           {.range = at_least(0)})
      .add("keep_best", &S::keep_best,
           "besides, as many with the lowest validation loss; a step that is among them is saved "
           "whatever every says",
           {kKeepsLast, kValidates}, {.range = at_least(0)})
      .add("resume", &S::resume,
           "none; auto: the newest checkpoint in dir that is complete and undamaged, or from the "
           "start if there is none; or the folder of a checkpoint",
           kAlways, {.aliases = {"resume_from_checkpoint", "load_path", "resume_from"}})
      .add("strict", &S::strict, "false: a checkpoint may lack tensors or have others", {kResumes})
      .add("overwrite", &S::overwrite,
           "remove checkpoints in dir that this run does not go on from", {kSaves})
      .build();
}

Section train_section() {
  using S = TrainSection;
  return SectionBuilder("train", &RunConfig::train,
                        "How long, in which portions, and what is done along the way.")
      .add("steps", &S::steps, "optimizer steps", {kNoEpochs},
           {.range = at_least(0),
            .aliases = {"max_steps", "num_steps", "max_iters", "iterations", "total_steps"}})
      .add("epochs", &S::epochs,
           "passes over the rows, such as 2 or 0.5, in place of steps; 0: as many steps as steps "
           "says",
           kAlways, {.range = at_least(0), .aliases = {"num_epochs", "num_train_epochs"}})
      .add("global_batch", &S::global_batch, "sequences in one optimizer step, over all ranks",
           kAlways,
           {.range = at_least(1),
            .aliases = {"batch_size", "global_batch_size", "batch", "train_batch_size"}})
      .add("micro_batch", &S::micro_batch,
           "sequences in one forward pass of one rank; 0: the rank's whole share", kAlways,
           {.range = at_least(0),
            .aliases = {"micro_batch_size", "gradient_accumulation_steps",
                        "per_device_train_batch_size", "train_micro_batch_size_per_gpu"}})
      .add("run_dir", &S::run_dir, "folder for metrics, pictures and the log", kAlways,
           {.aliases = {"output_dir", "out_dir", "save_dir"}})
      .add("validate_every", &S::validate_every, "steps between validations; 0: only at the end",
           {kValidates},
           {.range = at_least(0), .aliases = {"eval_interval", "eval_steps", "eval_every"}})
      .add("validate_on_start", &S::validate_on_start, "validate before the first step, too",
           {kValidates}, {.aliases = {"eval_on_start", "eval_at_start"}})
      .add("validation_batches", &S::validation_batches, "global batches in one validation",
           {kValidates}, {.range = at_least(1), .aliases = {"eval_iters", "eval_batches"}})
      .add("early_stopping_patience", &S::early_stopping_patience,
           "so many validations in a row without a lower loss end the run; 0: none does",
           {kValidatesAlongTheWay}, {.range = at_least(0), .aliases = {"patience"}})
      .add("early_stopping_threshold", &S::early_stopping_threshold,
           "by so much a loss must be lower to count as such", {kStopsEarly},
           {.range = at_least(0), .aliases = {"min_delta"}})
      .add("sample_tokens", &S::sample_tokens, "length of the text generated at the end; 0: none",
           kAlways, {.range = at_least(0), .aliases = {"max_new_tokens"}})
      .add("sample_prompt", &S::sample_prompt, "beginning of the text generated at the end",
           {kSamples}, {.aliases = {"prompt"}})
      .add("sample_answers", &S::sample_answers,
           "the model answers so many held-out conversations before the first step and at the end",
           {kValidates}, {.range = at_least(0)})
      .add("report_unused_parameters", &S::report_unused_parameters,
           "name the parameters that got no gradient", {kAfterBackward},
           {.aliases = {"find_unused_parameters"}})
      .add("nonfinite", &S::nonfinite,
           "at NaN or infinity in loss or gradients: stop the run, or skip the step; fp16 skips "
           "what its loss scale caused in any case",
           {kAfterBackward}, {.aliases = {"check_gradients", "skip_nan"}})
      .build();
}

Section logging_section() {
  using S = LoggingSection;
  return SectionBuilder("logging", &RunConfig::logging, "What one sees of a run.")
      .add("every", &S::every, "steps between lines, and between counts of what 8 bits lose",
           {kLines},
           {.range = at_least(1), .aliases = {"log_interval", "logging_steps", "interval"}})
      .add("tensorboard", &S::tensorboard, "write TensorBoard event files", kAlways)
      .add("report_to", &S::report_to,
           "further places for a run's figures: csv (metrics.csv in its folder), mlflow (mlruns/ "
           "there, for mlflow ui --backend-store-uri)",
           kAlways, {.choices = {"csv", "mlflow"}, .aliases = {"log_with", "trackers"}})
      .add("svg", &S::svg, "draw the loss curve", kAlways)
      .add("progress", &S::progress,
           "line: one line that is overwritten; plain: a line each; auto: line on a terminal, else "
           "plain",
           kAlways)
      .add("profile_step", &S::profile_step,
           "of this step, counted from 1, each rank writes profile_RANK.json into train.run_dir, "
           "for "
           "chrome://tracing or Perfetto: operators and, on a GPU, kernels; 0: of none",
           kAlways, {.range = at_least(0)})
      .build();
}

}  // namespace

const std::vector<Section>& sections() {
  static const std::vector<Section> list = {
      model_section(),     adapter_section(),  data_section(),     preference_section(),
      optimizer_section(), schedule_section(), parallel_section(), offload_section(),
      precision_section(), moe_section(),      memory_section(),   checkpoint_section(),
      train_section(),     logging_section()};
  return list;
}

const Field* find_field(const std::string& key) {
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      if (field.key == key) return &field;
    }
  }
  return nullptr;
}

}  // namespace tessera::config
