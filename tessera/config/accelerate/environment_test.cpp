#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/testing.h"
#include "tessera/config/accelerate/keys.h"
#include "tessera/config/accelerate/ledger.h"
#include "tessera/config/accelerate/settings.h"

namespace tessera::config::accelerate {
namespace {

using Environment = std::map<std::string, std::string>;

Settings settings_of(const std::vector<std::pair<std::string, std::string>>& values) {
  Settings settings;
  for (const auto& [key, value] : values) {
    settings.set({.key = find_key(key)->dotted(), .value = value, .origin = "test.yaml:1"});
  }
  return settings;
}

Settings read_back(const Environment& environment) {
  return settings_from_environment([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

// The three environments are what `accelerate launch` 1.15 gives a script that prints its own, less
// what torchrun sets and OMP_NUM_THREADS (a launcher's matter), and KMP_AFFINITY and KMP_BLOCKTIME,
// which bind all ranks of a machine to the same cores. On CPUs CUDA_VISIBLE_DEVICES is ours.
const Environment kNoDynamo = {{"ACCELERATE_DYNAMO_BACKEND", "NO"},
                               {"ACCELERATE_DYNAMO_MODE", "default"},
                               {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
                               {"ACCELERATE_DYNAMO_USE_DYNAMIC", "False"},
                               {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"}};

Environment with(const Environment& base, const Environment& more) {
  auto all = base;
  all.insert(more.begin(), more.end());
  return all;
}

TEST(EnvironmentTest, OnTheCpu) {
  EXPECT_THAT(environment_of(settings_of({{"distributed_type", "MULTI_CPU"},
                                          {"use_cpu", "true"},
                                          {"debug", "true"},
                                          {"num_processes", "2"},
                                          {"mixed_precision", "bf16"}})),
              ::testing::ContainerEq(with(kNoDynamo, {{"ACCELERATE_USE_CPU", "True"},
                                                      {"ACCELERATE_DEBUG_MODE", "true"},
                                                      {"ACCELERATE_MIXED_PRECISION", "bf16"},
                                                      {"CUDA_VISIBLE_DEVICES", ""}})));
}

TEST(EnvironmentTest, Fsdp) {
  const auto settings =
      settings_of({{"distributed_type", "FSDP"},
                   {"num_processes", "2"},
                   {"mixed_precision", "bf16"},
                   {"fsdp_config.version", "2"},
                   {"fsdp_config.reshard_after_forward", "false"},
                   {"fsdp_config.auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
                   {"fsdp_config.transformer_layer_cls_to_wrap", "LlamaDecoderLayer"},
                   {"parallelism_config.dp_shard_size", "2"}});
  EXPECT_THAT(
      environment_of(settings),
      ::testing::ContainerEq(with(kNoDynamo, {{"ACCELERATE_MIXED_PRECISION", "bf16"},
                                              {"ACCELERATE_USE_FSDP", "true"},
                                              {"FSDP_VERSION", "2"},
                                              {"FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
                                              {"FSDP_RESHARD_AFTER_FORWARD", "false"},
                                              {"FSDP_OFFLOAD_PARAMS", "false"},
                                              {"FSDP_MIN_NUM_PARAMS", "100000000"},
                                              {"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"},
                                              {"FSDP_TRANSFORMER_CLS_TO_WRAP", "LlamaDecoderLayer"},
                                              {"FSDP_FORWARD_PREFETCH", "false"},
                                              {"FSDP_USE_ORIG_PARAMS", "true"},
                                              {"FSDP_CPU_RAM_EFFICIENT_LOADING", "true"},
                                              {"FSDP_SYNC_MODULE_STATES", "true"},
                                              {"FSDP_ACTIVATION_CHECKPOINTING", "false"},
                                              {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"},
                                              {"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
                                              {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1"},
                                              {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"},
                                              {"PARALLELISM_CONFIG_TP_SIZE", "1"},
                                              {"PARALLELISM_CONFIG_CP_SIZE", "1"},
                                              {"PARALLELISM_CONFIG_CP_BACKEND", "torch"},
                                              {"PARALLELISM_CONFIG_SP_SIZE", "1"},
                                              {"PARALLELISM_CONFIG_SP_BACKEND", "deepspeed"}})));
}

TEST(EnvironmentTest, DeepSpeed) {
  EXPECT_THAT(environment_of(settings_of({{"distributed_type", "DEEPSPEED"},
                                          {"mixed_precision", "bf16"},
                                          {"num_processes", "2"},
                                          {"deepspeed_config.gradient_clipping", "1"},
                                          {"deepspeed_config.zero_stage", "3"},
                                          {"deepspeed_config.zero3_init_flag", "true"}})),
              ::testing::ContainerEq(
                  Environment{{"ACCELERATE_MIXED_PRECISION", "bf16"},
                              {"ACCELERATE_USE_DEEPSPEED", "true"},
                              {"ACCELERATE_CONFIG_DS_FIELDS",
                               "gradient_clipping,zero_stage,zero3_init_flag,mixed_precision"},
                              {"ACCELERATE_GRADIENT_CLIPPING", "1.0"},
                              {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"},
                              {"ACCELERATE_DEEPSPEED_ZERO3_INIT", "true"}}));
}

TEST(EnvironmentTest, TheQuestionnairesStrategyOfFsdp1ReachesTheRanks) {
  const auto environment = environment_of(settings_of(
      {{"distributed_type", "FSDP"}, {"fsdp_config.reshard_after_forward", "SHARD_GRAD_OP"}}));
  EXPECT_EQ(environment.at("FSDP_SHARDING_STRATEGY"), "SHARD_GRAD_OP");
  // Accelerate's own launcher says FULL_SHARD beside it.
  auto theirs = environment;
  theirs["FSDP_SHARDING_STRATEGY"] = "FULL_SHARD";
  theirs["WORLD_SIZE"] = "2";
  const auto job = translate(read_back(theirs)).job;
  const auto placement = std::ranges::find(job, "parallel.placement", &Override::key);
  ASSERT_NE(placement, job.end());
  EXPECT_EQ(placement->value, "shard_gradients");
}

/// Some other value than the default.
std::string sample(const Key& key) {
  if (key.name == "mixed_precision") return "fp8";
  if (!key.choices.empty()) return key.choices.back();
  switch (key.type) {
    case KeyType::boolean:
      return key.default_value == "true" ? "false" : "true";
    case KeyType::integer:
      return "2";
    case KeyType::number:
      return "0.5";
    case KeyType::list:
      return "[true, false, true]";
    case KeyType::text:
      break;
  }
  return "some_text";
}

TEST(EnvironmentTest, EveryVariableIsReadBackToItsSetting) {
  for (const auto* type : {"FSDP", "DEEPSPEED", "MEGATRON_LM"}) {
    auto settings = settings_of({{"distributed_type", type}});
    for (const auto& key : keys()) {
      if (key.name == "gpu_ids") continue;  // --cpu hides GPUs
      const bool precision = key.name == "fp8_override_linear_precision";
      if (key.variable.empty() && !precision) continue;
      settings.set({.key = key.dotted(), .value = sample(key), .origin = "test.yaml:1"});
    }
    const auto environment = environment_of(settings);
    const auto again = read_back(environment);
    for (const auto& key : keys()) {
      if (!environment.contains(key.variable) || key.name == "gpu_ids") continue;
      EXPECT_EQ(again.text(key.dotted()), settings.text(key.dotted())) << key.dotted();
    }
    EXPECT_EQ(again.text("distributed_type"), type);
    EXPECT_EQ(again.text("fp8_config.fp8_override_linear_precision"), "[true, false, true]");
    auto once_more = environment_of(again);
    once_more.erase("ACCELERATE_CONFIG_DS_FIELDS");  // the order of the file is lost
    for (const auto& [name, value] : once_more) EXPECT_EQ(environment.at(name), value) << name;
  }
}

TEST(EnvironmentTest, NothingWithoutALauncher) {
  EXPECT_TRUE(read_back({}).all().empty());
  EXPECT_TRUE(read_back({{"WORLD_SIZE", "4"}, {"FSDP_VERSION", "2"}}).all().empty());
}

TEST(EnvironmentTest, RanksAndMachines) {
  const auto settings = read_back({{"ACCELERATE_MIXED_PRECISION", "no"},
                                   {"WORLD_SIZE", "8"},
                                   {"LOCAL_WORLD_SIZE", "4"},
                                   {"MASTER_ADDR", "10.0.0.1"}});
  EXPECT_EQ(settings.text("distributed_type"), "MULTI_GPU");
  const auto plan = translate(settings).launch;
  EXPECT_EQ(plan.num_processes, 8);
  EXPECT_EQ(plan.num_machines, 2);
  EXPECT_EQ(
      read_back({{"ACCELERATE_USE_CPU", "True"}, {"WORLD_SIZE", "2"}}).text("distributed_type"),
      "MULTI_CPU");
  EXPECT_EQ(read_back({{"ACCELERATE_MIXED_PRECISION", "no"}}).text("distributed_type"), "NO");
  EXPECT_EQ(tessera::testing::message_of([] {
              read_back({{"ACCELERATE_USE_FSDP", "true"}, {"FSDP_VERSION", "3"}});
            }),
            "FSDP_VERSION: fsdp_config.fsdp_version: expected one of 1, 2, got '3'");
}

}  // namespace
}  // namespace tessera::config::accelerate
