#include "tessera/config/accelerate/deepspeed_keys.h"

#include <algorithm>
#include <iterator>

#include "tessera/config/accelerate/deepspeed_decide.h"

namespace tessera::config::accelerate {
namespace {

using enum KeyType;
using Rule = DeepspeedKey::Rule;
using Keys = std::vector<DeepspeedKey>;

const Range kAny{};
const Range kAtLeastOne{.low = 1};
const Range kOrMinusOne{.low = 0, .also = -1};

DeepspeedKey make(std::string path, KeyType type, Rule rule, std::string note = "") {
  DeepspeedKey key{.key = {.name = std::move(path), .type = type, .range = {.low = 0}},
                   .rule = rule,
                   .note = std::move(note)};
  return key;
}

DeepspeedKey ignored(std::string path, KeyType type, std::string note) {
  return make(std::move(path), type, Rule::ignored, std::move(note));
}

DeepspeedKey section(std::string path, std::string note) {
  return make(std::move(path), text, Rule::section, std::move(note));
}

DeepspeedKey only(std::string path, KeyType type, std::vector<std::string> accepted,
                  std::string note) {
  auto key = make(std::move(path), type, Rule::only, std::move(note));
  key.accepted = std::move(accepted);
  return key;
}

DeepspeedKey decided(std::string path, KeyType type, DecideDeepspeed decide) {
  auto key = make(std::move(path), type, Rule::decided);
  key.decide = decide;
  return key;
}

DeepspeedKey within(DeepspeedKey key, Range range) {
  key.key.range = range;
  return key;
}

DeepspeedKey one_of(DeepspeedKey key, std::vector<std::string> choices) {
  key.key.choices = std::move(choices);
  return key;
}

DeepspeedKey or_auto(DeepspeedKey key, std::string means, std::string value = "") {
  key.auto_means = std::move(means);
  key.auto_value = std::move(value);
  return key;
}

Keys below(const std::string& path, Keys keys) {
  for (auto& key : keys) key.key.name = path + "." + key.key.name;
  return keys;
}

using Names = std::vector<std::pair<std::string, KeyType>>;

/// Keys without effect here, all for one reason.
Keys ignored_below(const std::string& path, const std::string& note, const Names& names) {
  Keys keys;
  for (const auto& [name, type] : names) keys.push_back(within(ignored(name, type, note), kAny));
  return below(path, std::move(keys));
}

/// A section that must be switched off; then its other keys have no effect.
Keys switched_off(const std::string& path, const std::string& note, const Names& names) {
  auto keys = ignored_below(path, "without effect while " + path + ".enabled is false", names);
  keys.insert(keys.begin(), only(path + ".enabled", boolean, {"false"}, note));
  return keys;
}

Keys batch_keys() {
  const std::string batch = "train.global_batch of the job file",
                    portions = "train.micro_batch of the job file";
  return {
      or_auto(within(decided("train_batch_size", integer, deepspeed::train_batch), kAtLeastOne),
              batch),
      or_auto(within(decided("train_micro_batch_size_per_gpu", integer, deepspeed::micro_batch),
                     kAtLeastOne),
              portions),
      or_auto(within(decided("gradient_accumulation_steps", integer, deepspeed::accumulation),
                     kAtLeastOne),
              portions),
      only("managed_gradient_accumulation", boolean, {"true"},
           "a step of the optimizer always follows its last micro-batch"),
      or_auto(decided("gradient_clipping", number, deepspeed::clipping),
              "optimizer.max_grad_norm of the job file, 1 unless it says otherwise"),
      ignored("prescale_gradients", boolean, "the loss is divided before the backward"),
      ignored("gradient_predivide_factor", number, "the loss is divided before the backward"),
      only("gradient_allreduce_op", text, {"mean"}, "gradients of ranks are averaged"),
      only("sparse_gradients", boolean, {"false"}, "gradients of embeddings are dense"),
      ignored("disable_allgather", boolean, "each unit is gathered by one collective"),
      ignored("dataloader_drop_last", boolean,
              "every batch is full: the last goes on in the next "
              "epoch"),
      ignored("vocabulary_size", integer, "a hint for kernels; model.vocab_size sets the model's"),
      only("graph_harvesting", boolean, {"false"}, "CUDA graphs are not captured"),
      section("pipeline", "stages are the job file's: set parallel.pp there"),
      only("sequence_parallel_size", integer, {"1"},
           "Ulysses sequence parallelism is not built yet"),
      ignored("seq_parallel_communication_data_type", text,
              "there is no Ulysses sequence parallelism"),
      ignored("use_data_before_expert_parallelism", boolean,
              "neighbouring ranks share out the experts; results are the same"),
  };
}

Keys expert_keys() {
  const std::string family = "config.json names the family, whose modules are known";
  Keys keys{
      ignored("enabled", boolean, "autoep_size says it"),
      within(decided("autoep_size", integer, deepspeed::expert_ranks), kAtLeastOne),
      only("expert_tensor_parallel_size", integer, {"1"},
           "DeepSpeed takes no other either; set parallel.tp and parallel.etp in the job file"),
      ignored("use_grouped_mm", boolean, "experts are always multiplied in groups"),
      ignored("disable_triton_grouped_mm", boolean, "chooses a kernel"),
      only("load_balance_coeff", number, {}, "DeepSpeed refuses it, too; leave it null"),
      one_of(ignored("combine_impl", text, "results are always summed by weight"),
             {"auto", "weighted_sum", "legacy_bmm"}),
      ignored("validate_folding_routing", boolean, "tests compare every layout with one rank"),
      ignored("has_shared_experts", boolean, family),
  };
  for (const auto* name : {"preset_model", "moe_layer_pattern", "router_pattern", "expert_pattern",
                           "expert_w1", "expert_w2", "expert_w3", "num_experts_attr", "top_k_attr",
                           "shared_experts_pattern", "shared_experts_gate_pattern"}) {
    keys.push_back(ignored(name, text, family));
  }
  const std::string config = "config.json says how tokens find their experts";
  for (const auto* name : {"score_func", "score_apply"})
    keys.push_back(ignored(name, text, config));
  keys.push_back(or_auto(ignored("route_norm", boolean, config), config));
  for (const auto* name : {"route_scale", "top_k", "routed_scaling_factor", "num_expert_groups",
                           "num_limited_groups"}) {
    keys.push_back(or_auto(ignored(name, number, config), config));
  }
  return below("expert_parallel", std::move(keys));
}

Keys optimizer_keys() {
  const auto number_of = [](const char* name) {
    return decided(name, number, deepspeed::optimizer_number);
  };
  Keys keys{
      decided("type", text, deepspeed::optimizer_type),
      ignored("legacy_fusion", boolean, "chooses a kernel"),
  };
  std::ranges::move(
      below("params",
            {or_auto(decided("lr", number, deepspeed::learning_rate),
                     "optimizer.learning_rate of the job file"),
             or_auto(decided("betas", list, deepspeed::betas),
                     "optimizer.beta1 and beta2 of the job file"),
             or_auto(number_of("eps"), "optimizer.eps of the job file"),
             or_auto(number_of("weight_decay"), "optimizer.weight_decay of the job file"),
             decided("momentum", number, deepspeed::momentum),
             only("dampening", number, {"0"}, "SGD has no dampening here"),
             only("nesterov", boolean, {"false"}, "Nesterov's momentum is not built"),
             decided("adam_w_mode", boolean, deepspeed::adam_w_mode),
             ignored("torch_adam", boolean, "chooses a kernel"),
             ignored("fused", boolean, "chooses a kernel"),
             ignored("foreach", boolean, "chooses a kernel"),
             ignored("set_grad_none", boolean, "gradients live in flat buffers"),
             only("bias_correction", boolean, {"true"}, "AdamW corrects its bias"),
             only("amsgrad", boolean, {"false"}, "AMSGrad is not built"),
             only("maximize", boolean, {"false"}, "the loss goes down"),
             only("fp32_optimizer_states", boolean, {"true"},
                  "bf16.bf16_optimizer_states says it; in the job file precision.optimizer_states"),
             only("max_grad_norm", number, {}, "DeepSpeed refuses it too; set gradient_clipping")}),
      std::back_inserter(keys));
  for (const auto* name :
       {"max_coeff", "min_coeff", "lr_decay", "momentum_decay", "freeze_step", "cuda_aware",
        "comm_backend_name", "var_freeze_step", "var_update_scaler", "local_step_scaler",
        "local_step_clipper", "factor_max", "factor_min", "factor_threshold", "coeff_beta",
        "muon_lr", "adam_lr", "ns_method", "ns_steps"}) {
    keys.push_back(section(std::string("params.") + name, "of an optimizer that is not built"));
  }
  return below("optimizer", std::move(keys));
}

Keys scheduler_keys() {
  auto keys = below(
      "scheduler",
      {one_of(decided("type", text, deepspeed::scheduler_type),
              {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"}),
       or_auto(decided("params.warmup_min_lr", number, deepspeed::warmup_start),
               "the warm-up starts at 0"),
       or_auto(decided("params.warmup_min_ratio", number, deepspeed::warmup_start),
               "the warm-up starts at 0"),
       or_auto(decided("params.warmup_max_lr", number, deepspeed::warmup_peak),
               "optimizer.learning_rate of the job file"),
       or_auto(decided("params.warmup_num_steps", integer, deepspeed::warmup_steps),
               "schedule.warmup_steps of the job file"),
       one_of(decided("params.warmup_type", text, deepspeed::warmup_type), {"log", "linear"}),
       or_auto(
           within(decided("params.total_num_steps", integer, deepspeed::total_steps), kAtLeastOne),
           "train.steps of the job file"),
       within(decided("params.cos_min_ratio", number, deepspeed::cosine_floor),
              {.low = 0, .high = 1}),
       only("params.last_batch_iteration", integer, {"-1"}, "a checkpoint says where to go on")});
  for (const auto* name :
       {"lr_range_test_min_lr", "lr_range_test_step_rate", "lr_range_test_step_size",
        "lr_range_test_staircase", "cycle_first_step_size", "cycle_first_stair_count",
        "cycle_second_step_size", "cycle_second_stair_count", "decay_step_size", "cycle_min_lr",
        "cycle_max_lr", "decay_lr_rate", "cycle_momentum", "cycle_min_mom", "cycle_max_mom",
        "decay_mom_rate"}) {
    keys.push_back(
        section(std::string("scheduler.params.") + name, "of a schedule that is not built"));
  }
  return keys;
}

Keys precision_keys() {
  const std::string dynamic = "the scale begins at 65536 and finds its size by itself",
                    mixed = "mixed_precision of Accelerate's file, else false";
  auto keys = below(
      "fp16",
      {or_auto(decided("enabled", boolean, deepspeed::sixteen_bits), mixed),
       or_auto(ignored("auto_cast", boolean, "inputs are token numbers"), "inputs are not cast"),
       only("loss_scale", number, {"0"}, "a fixed scale is not built; the dynamic one is"),
       ignored("initial_scale_power", integer, dynamic),
       ignored("loss_scale_window", integer, "the scale doubles after 2000 steps without overflow"),
       ignored("hysteresis", integer, "the scale is halved at each overflow"),
       ignored("consecutive_hysteresis", boolean, "the scale is halved at each overflow"),
       ignored("min_loss_scale", number, dynamic),
       only("fp16_master_weights_and_grads", boolean, {"false"},
            "what the optimizer updates is fp32, or bf16 with bf16.bf16_master_weights_and_grads"),
       ignored("opt_level", text, "of amp, which is not used")});
  std::ranges::move(
      below("bf16", {or_auto(decided("enabled", boolean, deepspeed::sixteen_bits), mixed),
                     ignored("immediate_grad_update", boolean,
                             "gradients are always added where they are kept"),
                     decided("check_grad_overflow", boolean, deepspeed::overflow_check),
                     decided("bf16_master_weights_and_grads", boolean, deepspeed::bf16_parameters),
                     decided("bf16_optimizer_states", boolean, deepspeed::bf16_states)}),
      std::back_inserter(keys));
  std::ranges::move(
      below("torch_autocast", {decided("enabled", boolean, deepspeed::autocast),
                               one_of(decided("dtype", text, deepspeed::autocast_dtype),
                                      {"fp16", "float16", "half", "torch.float16", "bf16",
                                       "bfloat16", "torch.bfloat16"}),
                               only("lower_precision_safe_modules", list, {"[]"},
                                    "all products are cast; which modules are cannot be chosen")}),
      std::back_inserter(keys));
  const std::vector<std::string> dtypes{"fp32", "fp16", "bf16"};
  keys.push_back(one_of(decided("communication_data_type", text, deepspeed::reduce_dtype), dtypes));
  keys.push_back(
      one_of(decided("data_types.grad_accum_dtype", text, deepspeed::reduce_dtype), dtypes));
  keys.push_back(only("data_types.param_dtype", text, {},
                      "fp16.enabled or bf16.enabled says what parameters are computed in"));
  keys.push_back(only("data_types.buffer_dtype", text, {}, "buffers stay as the model has them"));
  keys.push_back(
      or_auto(only("amp.enabled", boolean, {"false"},
                   "Apex is not used; fp16, bf16 and torch_autocast are the ways to 16 bits"),
              "off", "false"));
  keys.push_back(section("amp", "see amp.enabled"));
  return keys;
}

Keys zero_keys() {
  const std::string buckets = "each unit is one bucket: parallel.units",
                    live = "parallel.max_gathered_units bounds what is whole at a time",
                    exact = "collectives are not quantised: ZeRO++ beyond hpZ is not built yet";
  const auto quantised = [&](const char* name) { return only(name, boolean, {"false"}, exact); };
  auto keys = below(
      "zero_optimization",
      {or_auto(within(decided("stage", integer, deepspeed::stage), {.low = 0, .high = 3}),
               "2 unless Accelerate's file says it", "2"),
       ignored("contiguous_gradients", boolean, "gradients always lie in flat buffers"),
       ignored("reduce_scatter", boolean, "gradients of sharded units are always reduced so"),
       or_auto(ignored("reduce_bucket_size", integer, buckets), buckets),
       ignored("use_multi_rank_bucket_allreduce", boolean, buckets),
       ignored("allgather_partitions", boolean, "each unit is gathered by one collective"),
       ignored("allgather_bucket_size", integer, buckets),
       ignored("overlap_comm", boolean, "collectives always overlap computation"),
       ignored("load_from_fp32_weights", boolean, "checkpoints hold what the optimizer updates"),
       ignored("elastic_checkpoint", boolean, "any checkpoint loads on any number of ranks"),
       ignored("sub_group_size", integer, "the optimizer goes unit by unit"),
       or_auto(ignored("stage3_prefetch_bucket_size", integer, "the next unit is prefetched"),
               "the next unit is prefetched"),
       or_auto(ignored("stage3_param_persistence_threshold", integer,
                       "small parameters travel with their unit"),
               "small parameters travel with their unit"),
       ignored("stage3_model_persistence_threshold", integer,
               "small parameters travel with their unit"),
       ignored("stage3_max_live_parameters", integer, live),
       ignored("stage3_max_reuse_distance", integer, live),
       or_auto(ignored("stage3_gather_16bit_weights_on_model_save", boolean,
                       "tessera checkpoint merge writes one file from any checkpoint"),
               "tessera checkpoint merge writes one file from any checkpoint"),
       ignored("stage3_gather_fp16_weights_on_model_save", boolean,
               "tessera checkpoint merge writes one file from any checkpoint"),
       ignored("stage3_module_granularity_threshold", integer, "parallel.units says what is one"),
       ignored("stage3_use_all_reduce_for_fetch_params", boolean, "units are gathered"),
       ignored("stage3_allgather_sequential", boolean, "units are gathered one by one"),
       decided("ignore_unused_parameters", boolean, deepspeed::unused_parameters),
       only("legacy_stage1", boolean, {"false"}, "there is one stage 1"),
       ignored("round_robin_gradients", boolean, "every rank updates its slice of each unit"),
       decided("zero_hpz_partition_size", integer, deepspeed::hpz),
       quantised("zero_quantized_weights"),
       quantised("zero_quantized_nontrainable_weights"),
       quantised("zero_quantized_gradients"),
       section("zeropp_loco_param", exact),
       within(decided("mics_shard_size", integer, deepspeed::mics), kOrMinusOne),
       ignored("mics_hierarchical_params_gather", boolean, "a way of gathering"),
       ignored("memory_efficient_linear", boolean, "products keep no copy of gathered weights"),
       ignored("pipeline_loading_checkpoint", boolean, "each rank reads its own slices"),
       ignored("override_module_apply", boolean, "weights are made slice by slice"),
       ignored("log_trace_cache_warnings", boolean, "there is no trace: units are fixed"),
       ignored("enable_sanity_checks", boolean, "checks are always on"),
       ignored("grad_hooks", boolean, "gradients are always reduced during the backward"),
       ignored("save_muon_momentum_buffer_in_memory", boolean, "its memory follows the ZeRO stage"),
       ignored("leaf_module.classes", list, "a unit is gathered as a whole"),
       ignored("leaf_module.names", list, "a unit is gathered as a whole"),
       ignored("leaf_module.name_suffixes", list, "a unit is gathered as a whole"),
       section("zenflow", "ZenFlow is not built")});
  return keys;
}

Keys offload_keys() {
  const std::string buffers =
                        "units come whole, two at a time, or as many as offload.host_memory holds",
                    drives =
                        "offload.buffers and offload.host_memory say it; reads and writes "
                        "always go on beside",
                    folder = "train.run_dir/offload unless Accelerate's file says it";
  const std::vector<std::string> devices{"none", "cpu", "nvme"};
  const auto device = [&](const char* name, DecideDeepspeed decide) {
    return or_auto(one_of(decided(name, text, decide), devices),
                   "none unless Accelerate's file says it", "none");
  };
  return below(
      "zero_optimization",
      {device("offload_param.device", deepspeed::offload_param),
       or_auto(decided("offload_param.nvme_path", text, deepspeed::offload_path), folder),
       ignored("offload_param.buffer_count", integer, buffers),
       ignored("offload_param.buffer_size", integer, buffers),
       ignored("offload_param.max_in_cpu", integer, "offload.host_memory says it"),
       ignored("offload_param.pin_memory", boolean, "a choice of memory for faster copies"),
       device("offload_optimizer.device", deepspeed::offload_optimizer),
       or_auto(decided("offload_optimizer.nvme_path", text, deepspeed::offload_path), folder),
       ignored("offload_optimizer.buffer_count", integer, drives),
       ignored("offload_optimizer.pin_memory", boolean, "a choice of memory for faster copies"),
       ignored("offload_optimizer.pipeline_read", boolean, drives),
       ignored("offload_optimizer.pipeline_write", boolean, drives),
       ignored("offload_optimizer.fast_init", boolean, drives),
       within(decided("offload_optimizer.ratio", number, deepspeed::offload_ratio),
              {.low = 0, .high = 1}),
       ignored("offload_optimizer.super_offload", boolean, "a way of overlapping the same work"),
       ignored("offload_optimizer.cpuadam_cores_perc", number, "parallel.threads_per_rank says it"),
       decided("cpu_offload", boolean, deepspeed::offload_optimizer),
       decided("cpu_offload_param", boolean, deepspeed::offload_param),
       ignored("cpu_offload_use_pin_memory", boolean, "a choice of memory for faster copies")});
}

Keys output_keys() {
  const std::string metrics = "train.run_dir holds metrics.jsonl and files for TensorBoard";
  Keys keys{
      ignored("steps_per_print", number, "logging.every says it; Accelerate, too, passes it over"),
      ignored("wall_clock_breakdown", boolean, metrics),
      ignored("memory_breakdown", boolean, metrics),
      ignored("dump_state", boolean, "--print-config shows every value and its origin"),
      ignored("log_level", text, "warnings and errors are always shown"),
      ignored("zero_allow_untested_optimizer", boolean, "every optimizer works with every stage"),
      ignored("zero_force_ds_cpu_optimizer", boolean, "there is one optimizer for CPU and GPU"),
      decided("tensorboard.enabled", boolean, deepspeed::tensorboard),
      ignored("tensorboard.output_path", text, "events go to train.run_dir"),
      ignored("tensorboard.job_name", text, "events go to train.run_dir"),
  };
  const auto take = [&](Keys more) { std::ranges::move(more, std::back_inserter(keys)); };
  take(ignored_below("wandb", "not linked to Weights & Biases; " + metrics,
                     {{"enabled", boolean}, {"group", text}, {"team", text}, {"project", text}}));
  take(ignored_below("csv_monitor", metrics,
                     {{"enabled", boolean}, {"output_path", text}, {"job_name", text}}));
  take(ignored_below("comet", "not linked to Comet; " + metrics,
                     {{"enabled", boolean},
                      {"samples_log_interval", integer},
                      {"project", text},
                      {"workspace", text},
                      {"api_key", text},
                      {"experiment_name", text},
                      {"experiment_key", text},
                      {"online", boolean},
                      {"mode", text}}));
  take(ignored_below("flops_profiler", "mfu stands in metrics.jsonl",
                     {{"enabled", boolean},
                      {"recompute_fwd_factor", number},
                      {"profile_step", integer},
                      {"module_depth", integer},
                      {"top_modules", integer},
                      {"detailed", boolean},
                      {"output_file", text}}));
  take(ignored_below("comms_logger", "communication_wait_seconds stands in metrics.jsonl",
                     {{"enabled", boolean},
                      {"prof_all", boolean},
                      {"prof_ops", list},
                      {"verbose", boolean},
                      {"debug", boolean}}));
  take(ignored_below("timers.throughput", metrics,
                     {{"enabled", boolean}, {"synchronized", boolean}}));
  return keys;
}

Keys memory_keys() {
  auto keys = ignored_below(
      "activation_checkpointing",
      "sets up deepspeed.checkpointing, which a model must call; here memory.checkpointing does it",
      {{"partition_activations", boolean},
       {"number_checkpoints", integer},
       {"contiguous_memory_optimization", boolean},
       {"synchronize_checkpoint_boundary", boolean},
       {"profile", boolean}});
  const auto take = [&](Keys more) { std::ranges::move(more, std::back_inserter(keys)); };
  take(below("activation_checkpointing",
             {decided("cpu_checkpointing", boolean, deepspeed::cpu_checkpointing)}));
  take(below("aio",
             {within(decided("block_size", integer, deepspeed::offload_drives), kAtLeastOne),
              within(decided("queue_depth", integer, deepspeed::offload_drives), kAtLeastOne)}));
  take(ignored_below("aio",
                     "one thread of each rank keeps offload.queue_depth reads and writes going",
                     {{"intra_op_parallelism", integer},
                      {"thread_count", integer},
                      {"single_submit", boolean},
                      {"overlap_events", boolean},
                      {"use_gds", boolean}}));
  const std::string parts = "each rank writes its slices; any number of ranks reads them";
  take(below(
      "checkpoint",
      {one_of(ignored("tag_validation", text, "ranks agree before a checkpoint is written"),
              {"Ignore", "Warn", "Fail"}),
       ignored("load_universal", boolean,
               "tessera checkpoint convert reads DeepSpeed's universal checkpoints"),
       only("use_node_local_storage", boolean, {"false"},
            "checkpoint.dir is one folder for all machines"),
       ignored("parallel_write.pipeline_stage", boolean, parts),
       ignored("checkpoint_serialization", boolean, parts),
       section("writer", "checkpoint.async and checkpoint.verify say how files are written")}));
  return keys;
}

Keys keys_of_what_is_not_built() {
  const std::string tensor = "tensor parallelism is the job file's: set parallel.tp there";
  const std::string unused = "counts for autotp_size above 1";
  auto keys = below(
      "tensor_parallel",
      {only("autotp_size", integer, {"0", "1"}, tensor), only("tp.tp_size", integer, {"1"}, tensor),
       ignored("tp.tp_grain_size", integer, unused), ignored("tp_overlap_comm", boolean, unused),
       ignored("preset_model", text, unused), ignored("dtype", text, unused),
       ignored("keep_module_on_host", boolean, unused), section("partition_config", tensor)});
  const auto take = [&](Keys more) { std::ranges::move(more, std::back_inserter(keys)); };
  take(switched_off("elasticity", "a run keeps its batch; it starts again on any number of ranks",
                    {{"max_train_batch_size", integer},
                     {"micro_batch_sizes", list},
                     {"min_gpus", integer},
                     {"max_gpus", integer},
                     {"num_gpus_per_node", integer},
                     {"model_parallel_size", integer},
                     {"min_time", integer},
                     {"prefer_larger_batch", boolean},
                     {"version", number},
                     {"ignore_non_elastic_batch_info", boolean}}));
  take(below("msamp", {decided("enabled", boolean, deepspeed::msamp),
                       one_of(ignored("opt_level", text, "see msamp.enabled"), {"O1", "O2", "O3"}),
                       ignored("use_te", boolean,
                               "there is one kind of linear layer, with MS-AMP or not")}));
  take(switched_off("progressive_layer_drop", "layers are never dropped",
                    {{"theta", number}, {"gamma", number}}));
  take(switched_off("eigenvalue", "of quantised training, which is not built",
                    {{"verbose", boolean},
                     {"max_iter", integer},
                     {"tol", number},
                     {"stability", number},
                     {"gas_boundary_resolution", integer},
                     {"layer_name", text},
                     {"layer_num", integer}}));
  take(switched_off("hybrid_engine", "training and generation are separate programs",
                    {{"max_out_tokens", integer},
                     {"inference_tp_size", integer},
                     {"release_inference_cache", boolean},
                     {"pin_parameters", boolean},
                     {"tp_gather_partition_size", integer},
                     {"enable_cuda_graph", boolean}}));
  take(switched_off("nebula", "checkpoints go to checkpoint.dir",
                    {{"enable_nebula_load", boolean},
                     {"load_path", text},
                     {"nebula_load_path", text},
                     {"persistent_storage_path", text},
                     {"persistent_time_interval", integer},
                     {"num_of_version_in_retention", integer}}));
  take(ignored_below("compile", "DeepCompile is not used: kernels are compiled ahead",
                     {{"deepcompile", boolean},
                      {"free_activation", boolean},
                      {"free_activation_threshold", integer},
                      {"offload_activation", boolean},
                      {"offload_activation_pin_memory", boolean},
                      {"offload_opt_states", boolean},
                      {"double_buffer", boolean},
                      {"symmetric_memory", boolean},
                      {"debug_log", boolean},
                      {"offload_parameters", boolean},
                      {"sync_before_reduce", boolean},
                      {"sync_after_reduce", boolean},
                      {"sync_before_allgather", boolean},
                      {"sync_after_allgather", boolean},
                      {"keep_int_input_tensors", boolean},
                      {"keep_all_input_tensors", boolean},
                      {"passes", list}}));
  take({section("curriculum_learning", "samples come in the order of data.shuffle and data.seed"),
        section("data_efficiency", "samples come in the order of data.shuffle and data.seed"),
        section("compression_training", "compression is not built"),
        section("quantize_training", "quantised training is not built"),
        section("weight_quantization", "quantised weights are not built yet"),
        section("sparse_attention", "attention looks at all positions before its own"),
        section("autotuning", "a run keeps the batch that it is given"),
        section("datastates_ckpt", "checkpoint.async writes while training goes on")});
  return keys;
}

Keys build() {
  Keys all;
  for (auto* keys :
       {batch_keys, expert_keys, optimizer_keys, scheduler_keys, precision_keys, zero_keys,
        offload_keys, output_keys, memory_keys, keys_of_what_is_not_built}) {
    std::ranges::move(keys(), std::back_inserter(all));
  }
  return all;
}

}  // namespace

const std::vector<DeepspeedKey>& deepspeed_file_keys() {
  static const auto all = build();
  return all;
}

const DeepspeedKey* find_deepspeed_file_key(const std::string& path) {
  const auto& all = deepspeed_file_keys();
  const auto exact = std::ranges::find(all, path, &DeepspeedKey::path);
  if (exact != all.end()) return &*exact;
  const auto around = std::ranges::find_if(all, [&](const DeepspeedKey& key) {
    return key.rule == Rule::section && path.starts_with(key.path() + ".");
  });
  return around == all.end() ? nullptr : &*around;
}

bool is_deepspeed_section(const std::string& path) {
  return std::ranges::any_of(deepspeed_file_keys(), [&](const DeepspeedKey& key) {
    return key.path().starts_with(path + ".");
  });
}

}  // namespace tessera::config::accelerate
