#include "tessera/config/accelerate/translate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tessera/base/testing.h"
#include "tessera/config/accelerate/keys.h"
#include "tessera/config/accelerate/show.h"
#include "tessera/config/accelerate/testing.h"
#include "tessera/config/run_config.h"

namespace tessera::config::accelerate {
namespace {

using tessera::testing::message_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Not;
using Values = std::vector<std::pair<std::string, std::string>>;

/// The settings of a file whose lines are `values`.
Settings translated_settings(const Values& values) {
  Settings settings;
  int line = 0;
  for (const auto& [key, value] : values) {
    settings.set({.key = find_key(key)->dotted(),
                  .value = value,
                  .origin = fmt::format("a.yaml:{}", ++line)});
  }
  return settings;
}

std::vector<std::string> job_of(const Values& values) {
  std::vector<std::string> lines;
  for (const auto& [key, value, origin, _] : translate(translated_settings(values)).job) {
    lines.push_back(fmt::format("{}={}", key, value));
  }
  return lines;
}

LedgerEntry entry_of(const Values& values, const std::string& key) {
  for (const auto& entry : translate(translated_settings(values)).ledger) {
    if (entry.setting.key == find_key(key)->dotted()) return entry;
  }
  ADD_FAILURE() << key;
  return {};
}

Verdict verdict_of(const Values& values, const std::string& key) {
  return entry_of(values, key).verdict;
}

std::string error_of(const Values& values) {
  return message_of([&] { translate(translated_settings(values)); });
}

Values fsdp(const Values& more = {}) {
  Values values{{"distributed_type", "FSDP"}, {"num_processes", "4"}};
  for (const auto& [key, value] : more) {
    const bool top = key == "num_machines" || key == "main_process_ip" || key == "mixed_precision";
    const bool full = top || key.find('.') != std::string::npos;
    values.emplace_back(full ? key : "fsdp_config." + key, value);
  }
  return values;
}

Values deepspeed(const Values& more = {}) {
  Values values{{"distributed_type", "DEEPSPEED"}, {"num_processes", "4"}};
  for (const auto& [key, value] : more) values.emplace_back("deepspeed_config." + key, value);
  return values;
}

// ---- what each kind of run becomes -------------------------------------------------------------

TEST(TranslateTest, PlainDataParallel) {
  for (const auto* type : {"MULTI_CPU", "MULTI_GPU"}) {
    EXPECT_THAT(
        job_of({{"distributed_type", type}, {"num_processes", "4"}, {"mixed_precision", "bf16"}}),
        ::testing::UnorderedElementsAre("parallel.placement=replicate", "parallel.num_ranks=4",
                                        "precision.compute=bf16", "precision.autocast=true"));
  }
  const auto plan =
      translate(translated_settings({{"distributed_type", "MULTI_CPU"}, {"num_processes", "4"}}))
          .launch;
  EXPECT_EQ(plan.num_processes, 4);  // Accelerate starts one
  EXPECT_TRUE(plan.cpu);
}

TEST(TranslateTest, FiveStrategies) {
  const std::vector<std::tuple<const char*, const char*, bool>> expected{
      {"FULL_SHARD", "full_shard", false},
      {"SHARD_GRAD_OP", "shard_gradients", false},
      {"NO_SHARD", "replicate", false},
      {"HYBRID_SHARD", "full_shard", true},
      {"HYBRID_SHARD_ZERO2", "shard_gradients", true}};
  for (const auto& [strategy, placement, hybrid] : expected) {
    // FSDP1's questionnaire writes the second key, which its launcher does not read.
    for (const auto* key : {"sharding_strategy", "reshard_after_forward"}) {
      const auto job =
          job_of(fsdp({{key, strategy}, {"num_machines", "2"}, {"main_process_ip", "h"}}));
      EXPECT_THAT(job, Contains(fmt::format("parallel.placement={}", placement))) << strategy;
      const std::vector<std::string> sizes{"parallel.dp_shard=2", "parallel.dp_replicate=2"};
      if (hybrid) {
        EXPECT_THAT(job, IsSupersetOf(sizes)) << strategy;
      } else {
        EXPECT_THAT(job, Not(Contains(sizes[0]))) << strategy;
      }
    }
  }
}

TEST(TranslateTest, SecondVersion) {
  EXPECT_THAT(job_of(fsdp({{"version", "2"}})), Contains("parallel.placement=full_shard"));
  EXPECT_THAT(
      job_of(fsdp({{"version", "2"}, {"reshard_after_forward", "false"}})),
      IsSupersetOf({"parallel.placement=full_shard", "parallel.reshard_after_forward=false"}));
  EXPECT_THAT(job_of(fsdp({{"version", "2"},
                           {"parallelism_config.dp_shard_size", "2"},
                           {"parallelism_config.dp_replicate_size", "2"}})),
              IsSupersetOf({"parallel.dp_shard=2", "parallel.dp_replicate=2"}));
  const auto verdict = [](const char* key, const char* value) {
    return verdict_of(fsdp({{"version", "2"}, {key, value}}), std::string("fsdp_config.") + key);
  };
  EXPECT_EQ(verdict("sharding_strategy", "FULL_SHARD"), Verdict::honoured);  // its default
  EXPECT_EQ(verdict("sharding_strategy", "HYBRID_SHARD"), Verdict::refused);
  EXPECT_EQ(verdict("reshard_after_forward", "HYBRID_SHARD"), Verdict::refused);
  EXPECT_EQ(verdict("state_dict_type", "LOCAL_STATE_DICT"), Verdict::refused);
  EXPECT_EQ(verdict("sync_module_states", "false"), Verdict::not_applicable);
}

TEST(TranslateTest, PrefetchNeedsSomethingToGather) {
  const auto of = [](const char* strategy, const char* key, const char* value) {
    return fsdp({{"sharding_strategy", strategy}, {key, value}});
  };
  const std::string backward = "fsdp_config.fsdp_backward_prefetch",
                    forward = "fsdp_config.fsdp_forward_prefetch";
  EXPECT_THAT(job_of(of("FULL_SHARD", "backward_prefetch", "BACKWARD_POST")),
              Contains("parallel.backward_prefetch=post"));
  for (const auto* strategy : {"NO_SHARD", "SHARD_GRAD_OP"}) {
    const auto values = of(strategy, "backward_prefetch", "BACKWARD_POST");
    EXPECT_EQ(verdict_of(values, backward), Verdict::not_applicable) << strategy;
    EXPECT_EQ(entry_of(values, backward).note, "needs parallel.placement full_shard") << strategy;
    EXPECT_THAT(job_of(values), Not(Contains("parallel.backward_prefetch=post"))) << strategy;
  }
  EXPECT_EQ(verdict_of(of("SHARD_GRAD_OP", "forward_prefetch", "false"), forward),
            Verdict::translated);
  EXPECT_EQ(verdict_of(of("NO_SHARD", "forward_prefetch", "true"), forward),
            Verdict::not_applicable);
  EXPECT_EQ(verdict_of(of("NO_SHARD", "forward_prefetch", "false"), forward),
            Verdict::honoured);  // Accelerate's default
}

TEST(TranslateTest, Units) {
  EXPECT_THAT(job_of(fsdp({{"auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
                           {"transformer_layer_cls_to_wrap", "BertLayer"}})),
              Contains("parallel.units=block"));
  EXPECT_THAT(job_of(fsdp({{"auto_wrap_policy", "NO_WRAP"}})), Contains("parallel.units=model"));
  EXPECT_THAT(job_of(fsdp({{"auto_wrap_policy", "SIZE_BASED_WRAP"}})),
              IsSupersetOf({"parallel.units=size", "parallel.min_num_params=100000000"}));
  EXPECT_THAT(job_of(fsdp({{"auto_wrap_policy", "SIZE_BASED_WRAP"}, {"min_num_params", "2000"}})),
              Contains("parallel.min_num_params=2000"));
  EXPECT_EQ(entry_of(fsdp({{"auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
                           {"transformer_layer_cls_to_wrap", "GPT2Block, MyBlock"}}),
                     "fsdp_config.transformer_layer_cls_to_wrap")
                .note,
            "parallel.units=block; MyBlock is looked for in the module of a tessera::Accelerator");
}

TEST(TranslateTest, PrecisionIsGatheredWhereParametersAreSplit) {
  EXPECT_THAT(job_of(fsdp({{"mixed_precision", "fp16"}})),
              IsSupersetOf({"precision.compute=fp16", "precision.autocast=false"}));
  EXPECT_THAT(job_of({{"distributed_type", "NO"}, {"mixed_precision", "no"}}),
              IsSupersetOf({"precision.compute=fp32", "precision.autocast=false"}));
}

TEST(TranslateTest, Fp8ByItsBackend) {
  const auto job = [](Values more) {
    more.insert(more.begin(), {{"distributed_type", "NO"}, {"mixed_precision", "fp8"}});
    return job_of(more);
  };
  EXPECT_THAT(job({}), IsSupersetOf({"precision.compute=bf16", "precision.matmul=fp8_tensor"}));
  EXPECT_THAT(job({{"fp8_config.fp8_backend", "TE"},
                   {"fp8_config.fp8_margin", "1"},
                   {"fp8_config.fp8_format", "E4M3"},
                   {"fp8_config.fp8_amax_history_len", "16"}}),
              IsSupersetOf({"precision.matmul=fp8_delayed", "precision.fp8_amax=most_recent",
                            "precision.fp8_margin=1", "precision.fp8_format=e4m3",
                            "precision.fp8_amax_history=16"}));
  EXPECT_THAT(
      job({{"fp8_config.fp8_backend", "TE"}, {"fp8_config.fp8_use_mxfp8_block_scaling", "true"}}),
      IsSupersetOf({"precision.matmul=mxfp8"}));
  EXPECT_THAT(job({{"fp8_config.fp8_backend", "MSAMP"}, {"fp8_config.fp8_opt_level", "O1"}}),
              IsSupersetOf({"precision.preset=msamp_o1"}));
  EXPECT_THAT(job_of(fsdp({{"mixed_precision", "fp8"},
                           {"fp8_config.fp8_backend", "AO"},
                           {"fp8_config.fp8_enable_fsdp_float8_all_gather", "true"}})),
              IsSupersetOf({"precision.weights=fp8", "precision.autocast=false"}));
}

TEST(TranslateTest, ZeroStages) {
  const std::vector<std::string> placements{"replicate", "shard_optimizer", "shard_gradients",
                                            "full_shard"};
  for (size_t stage = 0; stage < placements.size(); ++stage) {
    EXPECT_THAT(job_of(deepspeed({{"zero_stage", fmt::format("{}", stage)}})),
                Contains("parallel.placement=" + placements[stage]));
  }
  EXPECT_THAT(job_of(deepspeed()), Contains("parallel.placement=shard_gradients"));
  EXPECT_THAT(
      job_of(deepspeed({{"offload_optimizer_device", "cpu"}, {"gradient_clipping", "0.5"}})),
      IsSupersetOf({"parallel.offload_optimizer=true", "optimizer.max_grad_norm=0.5"}));
  EXPECT_THAT(job_of(deepspeed({{"zero_stage", "3"},
                                {"offload_param_device", "cpu"},
                                {"offload_optimizer_device", "cpu"}})),
              AllOf(Contains("parallel.offload_params=true"),
                    Not(Contains("parallel.offload_optimizer=true"))));
  EXPECT_THAT(job_of(deepspeed({{"zero_stage", "3"},
                                {"offload_param_device", "nvme"},
                                {"offload_param_nvme_path", "/nvme"}})),
              IsSupersetOf({"parallel.offload_params=nvme", "parallel.offload_optimizer=nvme",
                            "offload.paths=/nvme"}));
  const auto accumulated =
      translate(translated_settings(deepspeed({{"gradient_accumulation_steps", "4"}})));
  ASSERT_TRUE(accumulated.accumulation);
  EXPECT_EQ(accumulated.accumulation->value, "4");
}

TEST(TranslateTest, MegatronLm) {
  const Values base{{"distributed_type", "MEGATRON_LM"}, {"num_processes", "2"}};
  auto with = [&](const std::string& key, const std::string& value) {
    auto values = base;
    values.emplace_back("megatron_lm_config." + key, value);
    return values;
  };
  EXPECT_THAT(job_of(with("use_distributed_optimizer", "true")),
              Contains("parallel.placement=shard_optimizer"));
  EXPECT_THAT(job_of(with("recompute_activations", "true")),
              Contains("memory.checkpointing=selective"));
  EXPECT_THAT(job_of(with("tp_degree", "2")), Contains("parallel.tp=2"));
  auto sequence = with("tp_degree", "2");
  sequence.emplace_back("megatron_lm_config.sequence_parallelism", "false");
  EXPECT_THAT(job_of(sequence), Contains("parallel.sequence_parallel=false"));
  EXPECT_THAT(job_of(with("pp_degree", "2")), Contains("parallel.pp=2"));
  EXPECT_THAT(job_of(with("expert_model_parallel_size", "2")), Contains("parallel.ep=2"));
  auto experts = with("tp_degree", "2");
  experts.emplace_back("megatron_lm_config.expert_tensor_parallel_size", "2");
  EXPECT_EQ(verdict_of(experts, "megatron_lm_config.expert_tensor_parallel_size"),
            Verdict::honoured);
  EXPECT_EQ(entry_of(with("expert_tensor_parallel_size", "2"),
                     "megatron_lm_config.expert_tensor_parallel_size")
                .note,
            "expected a divisor of the 1 ranks of tp_degree; set 1");
  experts.back().second = "1";
  EXPECT_THAT(job_of(experts), Contains("parallel.etp=1"));
}

TEST(TranslateTest, MegatronExperts) {
  const auto with = [](const Values& own) {
    Values values{{"distributed_type", "MEGATRON_LM"}, {"num_processes", "2"}};
    for (const auto& [key, value] : own) values.emplace_back("megatron_lm_config." + key, value);
    return values;
  };
  const auto job = job_of(with({{"moe_expert_capacity_factor", "1.25"},
                                {"moe_token_drop_policy", "position"},
                                {"moe_input_jitter_eps", "0.01"}}));
  EXPECT_THAT(job, IsSupersetOf({"moe.capacity_factor=1.25", "moe.eval_capacity_factor=1.25",
                                 "moe.min_capacity=0", "moe.drop_policy=position",
                                 "moe.input_jitter=0.01"}));
  EXPECT_THAT(job_of(with({{"overlap_moe_expert_parallel_comm", "true"},
                           {"expert_model_parallel_size", "2"}})),
              Contains("moe.overlap_degree=2"));
  EXPECT_EQ(verdict_of(with({{"moe_shared_expert_overlap", "true"}}),
                       "megatron_lm_config.moe_shared_expert_overlap"),
            Verdict::not_applicable);
  EXPECT_EQ(verdict_of(with({{"moe_pad_expert_input_to_capacity", "true"}}),
                       "megatron_lm_config.moe_pad_expert_input_to_capacity"),
            Verdict::not_applicable);
}

/// Megatron's defaults are other ones than ours: a history of one step, the most recent maximum.
TEST(TranslateTest, MegatronFp8) {
  const auto with = [](const Values& own) {
    Values values{{"distributed_type", "MEGATRON_LM"},
                  {"num_processes", "2"},
                  {"mixed_precision", "bf16"},
                  {"megatron_lm_config.fp8_format", "hybrid"}};
    for (const auto& [key, value] : own) values.emplace_back("megatron_lm_config." + key, value);
    return values;
  };
  EXPECT_THAT(job_of(with({})),
              IsSupersetOf({"precision.matmul=fp8_delayed", "precision.fp8_format=hybrid",
                            "precision.fp8_amax_history=1", "precision.fp8_amax=most_recent"}));
  EXPECT_THAT(job_of(with({{"fp8_amax_history_len", "1024"},
                           {"fp8_amax_compute_algo", "max"},
                           {"fp8_margin", "2"},
                           {"first_last_layers_bf16", "true"}})),
              IsSupersetOf({"precision.fp8_amax_history=1024", "precision.fp8_amax=max",
                            "precision.fp8_margin=2", "precision.fp8_keep=[first_last]"}));
  EXPECT_THAT(job_of(with({{"fp8_recipe", "tensorwise"}, {"fp8_param_gather", "true"}})),
              IsSupersetOf({"precision.matmul=fp8_tensor", "precision.weights=fp8"}));
  EXPECT_EQ(entry_of(with({{"fp8_recipe", "blockwise"}}), "megatron_lm_config.fp8_format").note,
            "blockwise scales numbers of E4M3 alone; set e4m3");
  EXPECT_EQ(verdict_of(with({{"fp8_wgrad", "false"}}), "megatron_lm_config.fp8_wgrad"),
            Verdict::refused);
  EXPECT_EQ(verdict_of(with({{"fp8_dot_product_attention", "true"}}),
                       "megatron_lm_config.fp8_dot_product_attention"),
            Verdict::refused);
}

TEST(TranslateTest, OtherHardwareIsRefusedUnlessOnTheCpu) {
  Values xpu{{"distributed_type", "MULTI_XPU"}, {"num_processes", "2"}};
  EXPECT_EQ(entry_of(xpu, "distributed_type").note,
            "needs Intel GPUs; tessera drives NVIDIA GPUs and CPUs (--cpu tries it on a CPU)");
  xpu.emplace_back("use_cpu", "true");
  EXPECT_EQ(verdict_of(xpu, "distributed_type"), Verdict::translated);
}

TEST(TranslateTest, GpusAreNumbersOrNamesEachOnce) {
  const auto with = [](const std::string& ids, const std::string& origin = "a.yaml:3") {
    auto settings =
        translated_settings({{"distributed_type", "MULTI_GPU"}, {"num_processes", "2"}});
    settings.set({.key = "gpu_ids", .value = ids, .origin = origin});
    return message_of([&] { translate(settings); });
  };
  for (const auto* ids : {"all", "0,1", "GPU-1a,GPU-2b", "MIG-1,MIG-2"}) {
    EXPECT_EQ(with(ids), "no error") << ids;
  }
  for (const auto* ids : {"a,b", "0,0", "0,-1", "0,9999", "0,,1", "0,1,"}) {
    EXPECT_EQ(with(ids),
              fmt::format("a.yaml:3: gpu_ids: expected all, or numbers such as 0,1, each once, got "
                          "'{}'",
                          ids));
  }
  EXPECT_EQ(with("-1,-1", "CUDA_VISIBLE_DEVICES"), "no error");  // what a launcher left there
}

TEST(TranslateTest, SectionsOfAnotherTypeAreNotRead) {
  const auto entry = entry_of(
      {{"distributed_type", "NO"}, {"deepspeed_config.deepspeed_config_file", "none/such"}},
      "deepspeed_config.deepspeed_config_file");
  EXPECT_EQ(entry.verdict, Verdict::not_applicable);
  EXPECT_EQ(entry.note, "counts for distributed_type DEEPSPEED, not NO");
}

// ---- what contradicts itself -------------------------------------------------------------------

TEST(TranslateTest, Contradictions) {
  EXPECT_EQ(
      error_of({{"distributed_type", "FSDP"}}),
      "a.yaml:1: distributed_type FSDP needs num_processes; set it there, or --num_processes");
  EXPECT_EQ(error_of({{"distributed_type", "NO"}, {"num_processes", "2"}}),
            "a.yaml:1: distributed_type NO contradicts num_processes 2 (a.yaml:2): NO is one "
            "process; set "
            "MULTI_CPU or MULTI_GPU for several");
  EXPECT_EQ(error_of(fsdp({{"num_machines", "3"}, {"main_process_ip", "h"}})),
            "a.yaml:2: num_processes 4 contradicts num_machines 3 (a.yaml:3): each machine starts "
            "the same number");
  EXPECT_EQ(error_of(fsdp({{"num_machines", "2"}})),
            "a.yaml:3: num_machines 2 needs main_process_ip, the address of machine 0");
  EXPECT_EQ(
      error_of(fsdp({{"sharding_strategy", "FULL_SHARD"}, {"reshard_after_forward", "NO_SHARD"}})),
      "a.yaml:3: fsdp_config.fsdp_sharding_strategy FULL_SHARD contradicts "
      "fsdp_config.fsdp_reshard_after_forward NO_SHARD (a.yaml:4): version 1 has one strategy");
  EXPECT_EQ(
      error_of(fsdp({{"cpu_ram_efficient_loading", "true"}, {"sync_module_states", "false"}})),
      "a.yaml:3: fsdp_config.fsdp_cpu_ram_efficient_loading true contradicts "
      "fsdp_config.fsdp_sync_module_states false (a.yaml:4): weights that one process read must "
      "reach the "
      "others");
  EXPECT_EQ(
      error_of(fsdp({{"parallelism_config.dp_shard_size", "2"}})),
      "a.yaml:3: the sizes of parallelism_config multiply to 2, but num_processes is 4 (a.yaml:2)");
  EXPECT_EQ(error_of(fsdp({{"parallelism_config.dp_shard_size", "65536"},
                           {"parallelism_config.dp_replicate_size", "65536"},
                           {"parallelism_config.tp_size", "65536"},
                           {"parallelism_config.cp_size", "65536"}})),
            "a.yaml:4: the sizes of parallelism_config multiply to 18446744073709551616, but "
            "num_processes is 4 (a.yaml:2)");
  EXPECT_EQ(error_of(deepspeed({{"offload_param_device", "cpu"}})),
            "a.yaml:3: deepspeed_config.offload_param_device cpu contradicts "
            "deepspeed_config.zero_stage 2 "
            "(default): parameters are split in stage 3 alone");
  EXPECT_EQ(error_of(deepspeed({{"deepspeed_config_file", "ds.json"}, {"zero_stage", "2"}})),
            "a.yaml:4: deepspeed_config.zero_stage 2 contradicts "
            "deepspeed_config.deepspeed_config_file ds.json "
            "(a.yaml:3): set it in that file alone");
  EXPECT_EQ(error_of(deepspeed({{"deepspeed_config_file", "none.json"}})),
            "a.yaml:3: deepspeed_config.deepspeed_config_file: 'none.json' not found, neither from "
            "here nor "
            "beside the configuration");
}

TEST(TranslateTest, RefusedAndStrict) {
  const auto check = [](const Values& values, bool strict) {
    return message_of([&] { check_ledger(translate(translated_settings(values)).ledger, strict); });
  };
  EXPECT_EQ(check(fsdp({{"ignored_modules", "head"}}), false),
            "a.yaml:3: fsdp_config.fsdp_ignored_modules head is refused: no module can be left out "
            "of the units "
            "yet; remove it");
  const auto idle = fsdp({{"use_orig_params", "false"}});
  EXPECT_EQ(check(idle, false), "no error");
  EXPECT_EQ(check(idle, true),
            "a.yaml:3: fsdp_config.fsdp_use_orig_params false has no effect here (--strict): "
            "parameters are "
            "always the module's own; remove it");
}

// ---- every key ---------------------------------------------------------------------------------

/// Values that a key may have; the first is its default, where it has one.
std::vector<std::string> samples(const Key& key) {
  std::vector<std::string> values;
  if (!key.default_value.empty()) values.push_back(key.default_value);
  if (!key.choices.empty()) {
    values.insert(values.end(), key.choices.begin(), key.choices.end());
  } else if (key.type == KeyType::boolean) {
    values.insert(values.end(), {"true", "false"});
  } else if (key.type == KeyType::number && key.range.high <= 1) {
    values.insert(values.end(), {"0.25", "0.5"});
  } else if (key.type == KeyType::integer || key.type == KeyType::number) {
    values.insert(values.end(), {"1", "2", "4"});
  } else if (key.name == "main_process_ip") {
    values = {"10.0.0.1", "10.0.0.2"};
  } else {
    values.insert(values.end(), {"all", "0,1,2,3"});
  }
  std::erase(values, "-1");
  return values;
}

/// A configuration in which the key counts, as far as any can.
Values base_of(const Key& key) {
  Values values{{"num_processes", "4"}};
  const auto type = key.section == "deepspeed_config"     ? "DEEPSPEED"
                    : key.section == "megatron_lm_config" ? "MEGATRON_LM"
                    : key.section == "fsdp_config" || key.section == "parallelism_config"
                        ? "FSDP"
                        : "MULTI_GPU";
  values.emplace_back("distributed_type", type);
  if (key.name == "offload_param_device") values.emplace_back("deepspeed_config.zero_stage", "3");
  if (key.name == "fsdp_min_num_params")
    values.emplace_back("fsdp_config.auto_wrap_policy", "SIZE_BASED_WRAP");
  if (key.name == "fsdp_transformer_layer_cls_to_wrap") {
    values.emplace_back("fsdp_config.auto_wrap_policy", "TRANSFORMER_BASED_WRAP");
  }
  if (key.name == "machine_rank") values.emplace_back("num_machines", "4");
  if (key.name == "machine_rank" || key.name == "num_machines")
    values.emplace_back("main_process_ip", "h");
  return values;
}

/// All that a run is started with.
std::string effect_of(const Settings& settings) {
  const auto translation = translate(settings);
  const auto& launch = translation.launch;
  auto out = fmt::format("{} {} {} {} {} {}", launch.num_processes, launch.num_machines,
                         launch.machine_rank, launch.main_process_ip, launch.main_process_port,
                         launch.cpu);
  for (const auto& [key, value, origin, _] : translation.job)
    out += fmt::format("\n{}={}", key, value);
  for (const auto& [key, value] : environment_of(settings)) {
    if (key == "CUDA_VISIBLE_DEVICES") out += fmt::format("\n{}={}", key, value);
  }
  return out + "\n" + (translation.accumulation ? translation.accumulation->value : "");
}

/// Keys that are honoured because there is nothing to do.
const std::set<std::string>& without_effect() {
  static const std::set<std::string> keys{"fsdp_version", "same_network",
                                          "rdzv_backend",  // other values are not applicable
                                          "parallelism_config_cp_backend",
                                          "parallelism_config_sp_backend"};
  return keys;
}

TEST(TranslateTest, EveryKeyHasARuleAndWhatItTranslatesChangesTheRun) {
  for (const auto& key : keys()) {
    std::set<std::string> effects;
    bool translated = false, honoured_alike = true;
    for (const auto& value : samples(key)) {
      auto settings = translated_settings(base_of(key));
      if (key.name == "deepspeed_config_file") break;  // read from a file: ledger_test.cpp
      settings.set({.key = key.dotted(), .value = value, .origin = "a.yaml:9"});
      const bool tensor = key.name == "parallelism_config_tp_size";
      if (tensor || key.name.find("_dp_") != std::string::npos) {  // two sizes multiply to 4
        const auto* other = key.name.find("shard") != std::string::npos ? "replicate" : "shard";
        settings.set({.key = fmt::format("parallelism_config.parallelism_config_dp_{}_size", other),
                      .value = fmt::format("{}", 4 / std::stoi(value)),
                      .origin = "a.yaml:10"});
      }
      Translation translation;
      const auto error = message_of([&] { translation = translate(settings); });
      if (error != "no error") continue;  // a size that contradicts num_processes
      for (const auto& entry : translation.ledger) {
        if (entry.setting.key != key.dotted()) continue;
        translated = translated || entry.verdict == Verdict::translated;
        honoured_alike = honoured_alike && entry.verdict == Verdict::honoured;
      }
      effects.insert(effect_of(settings));
    }
    const bool must_change = translated || honoured_alike;
    if (key.name == "deepspeed_config_file" || without_effect().contains(key.name)) continue;
    if (key.name == "fsdp_transformer_layer_cls_to_wrap") continue;  // beside its policy
    EXPECT_EQ(must_change, effects.size() > 1) << key.dotted();
  }
}

TEST(TranslateTest, WhatIsTranslatedIsAValidJob) {
  std::vector<Values> all;
  for (const auto* strategy :
       {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}) {
    for (const auto* policy : {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}) {
      all.push_back(fsdp({{"sharding_strategy", strategy},
                          {"auto_wrap_policy", policy},
                          {"mixed_precision", "bf16"},
                          {"offload_params", "true"},
                          {"cpu_ram_efficient_loading", "true"},
                          {"sync_module_states", "true"},
                          {"backward_prefetch", "BACKWARD_POST"},
                          {"forward_prefetch", "false"},
                          {"activation_checkpointing", "true"},
                          {"num_machines", "2"},
                          {"main_process_ip", "h"}}));
    }
  }
  for (const auto* stage : {"0", "1", "2", "3"}) {
    for (const auto* device : {"none", "cpu"}) {
      all.push_back(deepspeed({{"zero_stage", stage},
                               {"offload_optimizer_device", device},
                               {"gradient_clipping", "0.5"}}));
    }
  }
  all.push_back(
      fsdp({{"version", "2"}, {"reshard_after_forward", "false"}, {"mixed_precision", "fp16"}}));
  all.push_back(fsdp(
      {{"version", "2"}, {"reshard_after_forward", "false"}, {"auto_wrap_policy", "NO_WRAP"}}));
  all.push_back({{"distributed_type", "NO"}, {"mixed_precision", "bf16"}});
  for (const auto& values : all) {
    const auto translation = translate(translated_settings(values));
    auto loaded = recipe_with(translation.job);
    loaded.config.parallel.num_ranks = translation.launch.num_processes;
    EXPECT_EQ(message_of([&] { check(loaded.config, loaded.origins); }), "no error")
        << native_yaml(translation);
  }
}

}  // namespace
}  // namespace tessera::config::accelerate
