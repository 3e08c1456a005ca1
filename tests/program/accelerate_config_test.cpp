// Accelerate's configurations at `tessera config show`, `config migrate` and `tessera train`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/testing.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kFsdp =
    "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\nfsdp_config:\n"
    "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_use_orig_params: false\n";
constexpr const char* kJob = "data:\n  train: [a.txt]\ntrain:\n  global_batch: 8\n";

class AccelerateConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::current_path(folder_.path());
    write_file("acc.yaml", kFsdp);
    write_file("job.yaml", kJob);
  }
  void TearDown() override { fs::current_path(before_); }

  static std::string out_of(const std::vector<std::string>& arguments,
                            const std::map<std::string, std::string>& environment = {}) {
    const auto end = run_tessera(arguments, {.environment = environment});
    EXPECT_EQ(end.exit_code, 0) << end.error;
    return end.out;
  }
  static std::string error_of(const std::vector<std::string>& arguments) {
    const auto end = run_tessera(arguments);
    EXPECT_EQ(end.exit_code, kUserErrorExit);
    return end.error;
  }

  tessera::testing::TemporaryFolder folder_;
  fs::path before_ = fs::current_path();
};

TEST_F(AccelerateConfigTest, ShowPrintsTheLedgerAndWhatItComesTo) {
  const auto out = out_of({"config", "show", "acc.yaml"});
  EXPECT_THAT(out, HasSubstr("placement: shard_gradients"));
  EXPECT_THAT(out, HasSubstr("Started as: tessera launch -n 2 PROGRAM"));
  EXPECT_THAT(out_of({"config", "show", "job.yaml"}), HasSubstr("# job.yaml:2"));
  EXPECT_THAT(out_of({"config", "show", "acc.yaml", "--json"}), StartsWith("{\n  \"ledger\": ["));
  EXPECT_EQ(error_of({"config", "show", "acc.yaml", "--strict"}),
            "tessera: acc.yaml:6: fsdp_config.fsdp_use_orig_params false has no effect here "
            "(--strict): parameters are always the module's own; remove it\n");
}

TEST_F(AccelerateConfigTest, ShowPrintsTheLedgerOfAFileThatCannotStart) {
  write_file("any.yaml",
             "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n"
             "  fsdp_sharding_strategy: HYBRID_SHARD\n");
  const std::string line =
      "tessera: any.yaml:1: distributed_type FSDP needs num_processes; set it there, or "
      "--num_processes\n";
  const auto end = run_tessera({"config", "show", "any.yaml"});
  EXPECT_EQ(end.exit_code, kUserErrorExit);
  EXPECT_EQ(end.error, line);
  EXPECT_THAT(end.out, HasSubstr("parallel.placement=full_shard\n"));
  EXPECT_THAT(end.out, HasSubstr("precision.compute=bf16"));
  EXPECT_THAT(end.out, HasSubstr("Nothing is started with it: num_processes is missing.\n"));
  EXPECT_THAT(end.out, Not(HasSubstr("dp_shard=")));  // sizes are not known
  const auto json = run_tessera({"config", "show", "any.yaml", "--json"});
  EXPECT_EQ(json.error, line);
  EXPECT_THAT(json.out, HasSubstr("\"num_processes\": null"));
  EXPECT_EQ(error_of({"config", "migrate", "any.yaml"}), line);
}

TEST_F(AccelerateConfigTest, MigrateWritesAJobFileThatHasTheSameEffect) {
  out_of({"config", "migrate", "acc.yaml", "-o", "native.yaml"});
  const auto out = out_of({"config", "show", "native.yaml"});
  EXPECT_THAT(out, ContainsRegex("placement: shard_gradients +# native.yaml:4"));
  EXPECT_THAT(out, ContainsRegex("compute: bf16 +# native.yaml:6"));
  EXPECT_EQ(error_of({"config", "migrate", "acc.yaml", "-o", "native.yaml"}),
            "tessera: native.yaml: exists already; remove it or name another file\n");
  EXPECT_EQ(error_of({"config", "migrate", "job.yaml"}),
            "tessera: job.yaml: is a job file already\n");
}

TEST_F(AccelerateConfigTest, TrainTakesTheFilesValuesAndThenTheCommandLines) {
  const std::vector<std::string> train{"train",    "job.yaml",       "--config_file",
                                       "acc.yaml", "--print-config", "--cpu"};
  const auto out = out_of(train);
  EXPECT_THAT(out, ContainsRegex("placement: shard_gradients +# acc.yaml:5"));
  EXPECT_THAT(out, ContainsRegex("num_ranks: 2 +# acc.yaml:3"));
  auto other = train;
  other.insert(other.end(), {"--parallel.num_ranks=4", "--parallel.placement=full_shard"});
  EXPECT_THAT(out_of(other),
              ContainsRegex("num_ranks: 4 +# command line(.|\n)*full_shard +# command line"));
}

TEST_F(AccelerateConfigTest, WhatAFileCannotHaveHereIsLeftOut) {
  write_file("ddp.yaml",
             "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n"
             "  fsdp_sharding_strategy: NO_SHARD\n  fsdp_backward_prefetch: BACKWARD_POST\n"
             "  fsdp_forward_prefetch: false\n");
  EXPECT_THAT(out_of({"config", "show", "ddp.yaml"}),
              ContainsRegex("not applicable +fsdp_config.fsdp_backward_prefetch +BACKWARD_POST +"
                            "needs parallel.placement full_shard"));
  EXPECT_THAT(out_of({"train", "job.yaml", "--config_file", "ddp.yaml", "--cpu", "--print-config"}),
              ContainsRegex("backward_prefetch: pre +# default"));
  EXPECT_THAT(error_of({"train", "job.yaml", "--parallel.backward_prefetch=post"}),
              HasSubstr("--parallel.backward_prefetch: has no effect here: it needs "
                        "parallel.placement full_shard; remove one of them"));
}

TEST_F(AccelerateConfigTest, ARankOfALauncherTakesTheLaunchersValues) {
  const std::map<std::string, std::string> ranks{{"RANK", "0"},
                                                 {"WORLD_SIZE", "2"},
                                                 {"LOCAL_RANK", "0"},
                                                 {"LOCAL_WORLD_SIZE", "2"},
                                                 {"MASTER_ADDR", "127.0.0.1"},
                                                 {"MASTER_PORT", "29500"}};
  auto launched = ranks;
  launched.insert({{"ACCELERATE_USE_FSDP", "true"},
                   {"ACCELERATE_USE_CPU", "True"},
                   {"ACCELERATE_MIXED_PRECISION", "bf16"},
                   {"FSDP_SHARDING_STRATEGY", "FULL_SHARD"}});
  const std::vector<std::string> train{"train", "job.yaml", "--print-config"};
  EXPECT_THAT(out_of(train, launched),
              ContainsRegex("placement: full_shard +# FSDP_SHARDING_STRATEGY"));
  EXPECT_THAT(out_of(train, ranks), Not(HasSubstr("full_shard")));
}

TEST_F(AccelerateConfigTest, AccumulationIsAPortionOfTheGlobalBatch) {
  write_file("ds.yaml",
             "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
             "  gradient_accumulation_steps: 2\n");
  EXPECT_THAT(out_of({"train", "job.yaml", "--config_file", "ds.yaml", "--cpu", "--print-config"}),
              ContainsRegex("micro_batch: 2 +# ds.yaml:4"));
  EXPECT_EQ(
      error_of(
          {"train", "job.yaml", "--config_file", "ds.yaml", "--cpu", "--train.global_batch=6"}),
      "tessera: ds.yaml:4: deepspeed_config.gradient_accumulation_steps 2: the 6 sequences of "
      "train.global_batch cannot be divided over 2 ranks and 2 portions\n");
}

TEST_F(AccelerateConfigTest, WhatCannotBeIsOneLine) {
  write_file(
      "nodes.yaml",
      "distributed_type: MULTI_CPU\nnum_machines: 2\nnum_processes: 2\nmain_process_ip: h\n");
  EXPECT_EQ(
      error_of({"train", "job.yaml", "--config_file", "nodes.yaml"}),
      "tessera: nodes.yaml:2: num_machines 2: tessera train starts ranks on one; start tessera "
      "launch --config_file nodes.yaml tessera train job.yaml on each\n");
  EXPECT_EQ(error_of({"train", "job.yaml", "--strict"}),
            "tessera: train: --strict and --cpu are of a --config_file; give one\n");
  EXPECT_EQ(error_of({"train", "job.yaml", "--config_file", "acc.yaml", "--cpu", "--strict"}),
            "tessera: acc.yaml:6: fsdp_config.fsdp_use_orig_params false has no effect here "
            "(--strict): parameters are always the module's own; remove it\n");
}

}  // namespace
}  // namespace tessera
