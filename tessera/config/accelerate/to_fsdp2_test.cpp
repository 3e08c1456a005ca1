#include "tessera/config/accelerate/to_fsdp2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::config::accelerate {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;

Settings fsdp_settings_of(const std::vector<std::pair<std::string, std::string>>& values) {
  Settings settings;
  int line = 0;
  for (const auto& [key, value] : values) {
    settings.set({.key = key, .value = value, .origin = "acc.yaml:" + std::to_string(++line)});
  }
  return settings;
}

Settings with_strategy(const std::string& strategy, const char* key = "fsdp_sharding_strategy") {
  return fsdp_settings_of({{"distributed_type", "FSDP"},
                           {"num_machines", "2"},
                           {"num_processes", "8"},
                           {std::string("fsdp_config.") + key, strategy}});
}

TEST(ToFsdp2Test, StrategiesUnderEitherNameBecomeReshardAndSizes) {
  const struct {
    const char* strategy;
    const char* reshard;
    bool hybrid;
  } cases[] = {{"FULL_SHARD", "true", false},
               {"SHARD_GRAD_OP", "false", false},
               {"NO_SHARD", "false", false},
               {"HYBRID_SHARD", "true", true},
               {"HYBRID_SHARD_ZERO2", "false", true}};
  for (const auto& one : cases) {
    for (const char* key : {"fsdp_sharding_strategy", "fsdp_reshard_after_forward"}) {
      const auto [settings, changes] = to_fsdp2(with_strategy(one.strategy, key));
      EXPECT_EQ(settings.text("fsdp_config.fsdp_version"), "2");
      EXPECT_EQ(settings.text("fsdp_config.fsdp_reshard_after_forward"), one.reshard);
      EXPECT_EQ(settings.find("fsdp_config.fsdp_sharding_strategy"), nullptr);
      EXPECT_EQ(settings.text("parallelism_config.dp_replicate_size"), one.hybrid ? "2" : "1");
      EXPECT_EQ(settings.text("parallelism_config.dp_shard_size"), one.hybrid ? "4" : "1");
      EXPECT_EQ(changes.size(), one.hybrid ? 3U : 2U);
    }
  }
}

TEST(ToFsdp2Test, WhatVersion2LacksIsLeftOutAndSaid) {
  const auto [settings, changes] =
      to_fsdp2(fsdp_settings_of({{"distributed_type", "FSDP"},
                                 {"fsdp_config.fsdp_backward_prefetch", "BACKWARD_PRE"},
                                 {"fsdp_config.fsdp_forward_prefetch", "false"},
                                 {"fsdp_config.fsdp_use_orig_params", "true"},
                                 {"fsdp_config.fsdp_sync_module_states", "true"},
                                 {"fsdp_config.fsdp_state_dict_type", "LOCAL_STATE_DICT"},
                                 {"fsdp_config.fsdp_offload_params", "true"}}));
  EXPECT_THAT(
      changes,
      ElementsAre("fsdp_version: 2",
                  "fsdp_reshard_after_forward: true, for FULL_SHARD, the default of version 1",
                  "fsdp_backward_prefetch: left out; version 2 prefetches by itself",
                  "fsdp_forward_prefetch: left out; Accelerate has it in version 1 alone",
                  "fsdp_use_orig_params: left out; always so in version 2",
                  "fsdp_sync_module_states: left out; version 2 does so when it loads weights",
                  "fsdp_state_dict_type: SHARDED_STATE_DICT; version 2 has no LOCAL_STATE_DICT"));
  EXPECT_EQ(to_yaml(settings),
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
            "  fsdp_reshard_after_forward: true\n  fsdp_offload_params: true\n"
            "  fsdp_state_dict_type: SHARDED_STATE_DICT\n");
}

TEST(ToFsdp2Test, TrueAndFalseStay) {
  const auto [settings, changes] =
      to_fsdp2(fsdp_settings_of({{"fsdp_config.fsdp_reshard_after_forward", "false"}}));
  EXPECT_EQ(settings.text("fsdp_config.fsdp_reshard_after_forward"), "false");
  EXPECT_THAT(changes, ElementsAre("fsdp_version: 2", "fsdp_reshard_after_forward: false"));
}

TEST(ToFsdp2Test, SizesThatAreThereStay) {
  auto settings = with_strategy("HYBRID_SHARD");
  settings.set({.key = "parallelism_config.parallelism_config_dp_shard_size",
                .value = "2",
                .origin = "acc.yaml:9"});
  const auto result = to_fsdp2(settings);
  EXPECT_EQ(result.settings.text("parallelism_config.dp_shard_size"), "2");
  EXPECT_EQ(result.settings.find("parallelism_config.dp_replicate_size"), nullptr);
  EXPECT_THAT(result.changes, Contains("parallelism_config: its sizes stay as they are"));
}

TEST(ToFsdp2Test, WhatCannotBeConverted) {
  const auto error_of = [](const Settings& settings) {
    return testing::message_of([&] { to_fsdp2(settings); });
  };
  EXPECT_EQ(error_of(fsdp_settings_of({{"distributed_type", "NO"}})),
            "acc.yaml:1: distributed_type is NO, and there is no fsdp_config: nothing to convert");
  EXPECT_EQ(error_of(fsdp_settings_of({{"fsdp_config.fsdp_version", "2"}})),
            "acc.yaml:1: fsdp_version is 2 already; nothing to convert");
  EXPECT_EQ(error_of(fsdp_settings_of(
                {{"num_machines", "2"}, {"fsdp_config.fsdp_sharding_strategy", "HYBRID_SHARD"}})),
            "acc.yaml:2: HYBRID_SHARD splits within each machine and copies between them: give "
            "num_processes");
  EXPECT_THAT(error_of(fsdp_settings_of({{"fsdp_config.fsdp_sharding_strategy", "HYBRID_SHARD"},
                                         {"num_machines", "2"},
                                         {"num_processes", "3"}})),
              EndsWith("(acc.yaml:2): each machine starts the same number"));
  EXPECT_THAT(
      error_of(fsdp_settings_of({{"fsdp_config.fsdp_sharding_strategy", "HYBRID_SHARD"},
                                 {"fsdp_config.fsdp_reshard_after_forward", "FULL_SHARD"}})),
      EndsWith("fsdp_reshard_after_forward FULL_SHARD (acc.yaml:2): version 1 has one strategy"));
}

}  // namespace
}  // namespace tessera::config::accelerate
