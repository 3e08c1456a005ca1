// `tessera to-fsdp2` and `tessera merge-weights` as a user of Accelerate runs them.
#include <gmock/gmock.h>

#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/write_checkpoint.h"
#include "tessera/data/testing.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoint::SafetensorsFile;
using checkpoint::testing::read_all;
using ::testing::HasSubstr;

constexpr const char* kHybrid =
    "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\nfsdp_config:\n"
    "  sharding_strategy: HYBRID_SHARD\n";

class AccelerateFilesTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::current_path(folder_.path()); }
  void TearDown() override { fs::current_path(before_); }

  static std::string run(const std::vector<std::string>& arguments) {
    const auto end = run_tessera(arguments);
    EXPECT_EQ(end.exit_code, 0) << end.error;
    EXPECT_EQ(end.error, "");
    return end.out;
  }

  static void expect_refusal(const std::vector<std::string>& arguments, const std::string& line) {
    const auto end = run_tessera(arguments);
    EXPECT_EQ(end.exit_code, kUserErrorExit);
    EXPECT_EQ(end.error, "tessera: " + line + "\n");
    EXPECT_EQ(end.out, "");
  }

  const fs::path dcp_ = fs::current_path() / "tests/fixtures/dcp_micro";
  tessera::testing::TemporaryFolder folder_;
  fs::path before_ = fs::current_path();
};

TEST_F(AccelerateFilesTest, ToFsdp2WritesWhatItSaysAndNothingOverAnotherFile) {
  write_file("one.yaml", kHybrid);
  EXPECT_EQ(run({"to-fsdp2", "--config_file", "one.yaml", "--output-file", "two.yaml"}),
            "fsdp_version: 2\n"
            "fsdp_reshard_after_forward: true, for HYBRID_SHARD\n"
            "parallelism_config: dp_replicate_size 2 and dp_shard_size 8, for HYBRID_SHARD on 2 "
            "machines of 8 processes\n"
            "wrote two.yaml\n");
  const std::string converted =
      "distributed_type: FSDP\nnum_processes: 16\nnum_machines: 2\nfsdp_config:\n"
      "  fsdp_version: 2\n  fsdp_reshard_after_forward: true\nparallelism_config:\n"
      "  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 8\n";
  EXPECT_EQ(read_file("two.yaml"), converted);

  const auto exists = "two.yaml: exists; choose another --output_file, or add --overwrite";
  expect_refusal({"to-fsdp2", "--config_file", "one.yaml", "--output_file", "two.yaml"}, exists);
  expect_refusal({"to-fsdp2", "--config_file", "one.yaml"},
                 "give --output_file, or --overwrite to replace one.yaml");
  expect_refusal({"to-fsdp2", "--config_file", "two.yaml", "--overwrite"},
                 "two.yaml:5: fsdp_version is 2 already; nothing to convert");
  EXPECT_EQ(read_file("one.yaml"), kHybrid);
  run({"to-fsdp2", "--config_file", "one.yaml", "--overwrite"});
  EXPECT_EQ(read_file("one.yaml"), converted);
}

TEST_F(AccelerateFilesTest, MergeWeightsOfACheckpointAndOfTorch) {
  checkpoint::testing::MemorySource source;
  source.add_counting("embed.weight", {300, 7});
  source.add_counting("optimizer/exp_avg/embed.weight", {300, 7});
  checkpoint::write_checkpoint(source, "step", {.about = {.step = 3}, .num_files = 2});
  EXPECT_EQ(run({"merge-weights", "step", "merged"}), "wrote merged/model.safetensors\n");
  const SafetensorsFile merged("merged/model.safetensors");
  EXPECT_EQ(merged.tensors().size(), 1U);
  EXPECT_TRUE(read_all(merged, "embed.weight") == read_all(source, "embed.weight"));
  EXPECT_EQ(merged.metadata().at("format"), "pt");

  run({"merge-weights", (dcp_ / "pytorch_model_fsdp_0").string(), "a/b.safetensors"});
  EXPECT_THAT(run({"checkpoint", "diff", "a/b.safetensors", dcp_.string(), "--parameters-only"}),
              HasSubstr("equal: 21 tensors"));
  const auto optimizer = (dcp_ / "optimizer_0").string();
  expect_refusal(
      {"merge-weights", optimizer, "c"},
      optimizer + ": holds no parameters (an optimizer's state?); name the model's folder");
  EXPECT_FALSE(fs::exists("c"));
  expect_refusal({"merge-weights", "step", "merged"},
                 "merged/model.safetensors: exists; remove it or choose another name to write to");
}

TEST_F(AccelerateFilesTest, MergeWeightsRemovesOnlyACheckpointOfItsOwn) {
  fs::copy(dcp_ / "pytorch_model_fsdp_0", "sharded");
  expect_refusal({"merge-weights", "sharded", "sharded/all", "--remove_checkpoint_dir"},
                 "--remove_checkpoint_dir: sharded/all/model.safetensors would lie in the "
                 "checkpoint sharded; write it elsewhere");
  fs::create_directory("run");
  fs::rename("sharded", "run/pytorch_model_fsdp_0");
  expect_refusal({"merge-weights", "run", "all", "--remove_checkpoint_dir"},
                 "--remove_checkpoint_dir: run: only a checkpoint's own folder is removed, one of "
                 "Tessera or torch.distributed.checkpoint");
  EXPECT_EQ(run({"merge-weights", "run/pytorch_model_fsdp_0", "all", "--remove-checkpoint-dir"}),
            "wrote all/model.safetensors\nremoved run/pytorch_model_fsdp_0\n");
  EXPECT_TRUE(fs::exists("run"));
  EXPECT_FALSE(fs::exists("run/pytorch_model_fsdp_0"));
  expect_refusal({"merge-weights", "all", "bin", "--unsafe_serialization"},
                 "--unsafe_serialization: pickled weights (.bin) are not written; leave it out for "
                 ".safetensors, which everything reads");
}

}  // namespace
}  // namespace tessera
