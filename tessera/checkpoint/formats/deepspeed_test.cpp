#include "tessera/checkpoint/formats/deepspeed.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/base/digest.h"
#include "tessera/base/file.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using tessera::testing::TemporaryFolder;

// Four steps of ZeRO-1 on two ranks, written by DeepSpeed's own converter.
const fs::path kFolder = "tests/fixtures/deepspeed_universal";

TEST(DeepspeedTest, EveryTensorHasTheRecordedSum) {
  const DeepspeedUniversalSource source(kFolder);
  const auto expected = nlohmann::json::parse(read_file(kFolder / "expected.json"));
  EXPECT_EQ(source.tensors().size(), expected.size());
  for (const auto& [name, tensor] : expected.items()) {
    const auto& info = source.info(name);
    EXPECT_EQ(info.shape, tensor["shape"].get<std::vector<int64_t>>());
    std::vector<std::byte> bytes(static_cast<size_t>(info.num_bytes()));
    source.read(name, 0, bytes);
    EXPECT_EQ(sha256(bytes), tensor["sha256"].get<std::string>()) << name;
  }
}

TEST(DeepspeedTest, KnowsWhatARunNeeds) {
  const DeepspeedUniversalSource source(kFolder);
  const auto training = stored_training(source);
  using Names = StoredTraining::Names;
  EXPECT_EQ(training.parameters, (Names{{"bias", "bias/fp32"}, {"weight", "weight/fp32"}}));
  EXPECT_EQ(training.states.size(), 2U);
  EXPECT_EQ(training.states.at("exp_avg_sq"),
            (Names{{"bias", "bias/exp_avg_sq"}, {"weight", "weight/exp_avg_sq"}}));
  EXPECT_EQ(training.step, 4);
}

TEST(DeepspeedTest, RefusesWhatIsNone) {
  EXPECT_NE(refusal([] {
              DeepspeedUniversalSource source("tests/fixtures/llama_micro");
            }).find("expected a universal checkpoint of DeepSpeed"),
            std::string::npos);

  TemporaryFolder folder;
  fs::copy(kFolder, folder.path() / "copy", fs::copy_options::recursive);
  const auto open = [&] { DeepspeedUniversalSource source(folder.path() / "copy"); };
  EXPECT_EQ(refusal(open), "(accepted)");
  folder.write("copy/zero/bias/exp_avg.pt", "no archive");
  EXPECT_NE(refusal(open).find("exp_avg.pt: expected a zip file"), std::string::npos);
}

}  // namespace
}  // namespace tessera::checkpoint
