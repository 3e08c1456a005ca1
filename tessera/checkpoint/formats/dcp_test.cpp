#include "tessera/checkpoint/formats/dcp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "tessera/base/digest.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using nlohmann::json;
using tessera::testing::TemporaryFolder;

const fs::path kMicro = "tests/fixtures/dcp_micro";
const fs::path kMixed = "tests/fixtures/dcp_mixed";

json expected_of(const fs::path& folder) {
  return json::parse(read_file(folder / "expected.json"));
}

/// The bytes of a tensor, read in pieces of `step` elements; 0: as a whole.
std::vector<std::byte> read_in_steps(const TensorSource& source, const std::string& name,
                                     int64_t step = 0) {
  const auto& info = source.info(name);
  std::vector<std::byte> bytes(static_cast<size_t>(info.num_bytes()));
  const int64_t count = info.num_elements(), element = dtype_bytes(info.dtype);
  if (step == 0) step = std::max<int64_t>(count, 1);
  for (int64_t begin = 0; begin < count; begin += step) {
    source.read(
        name, begin,
        std::span(bytes).subspan(static_cast<size_t>(begin * element),
                                 static_cast<size_t>(std::min(step, count - begin) * element)));
  }
  return bytes;
}

template <typename T>
T number(const TensorSource& source, const std::string& name) {
  T value;
  const auto bytes = read_in_steps(source, name);
  EXPECT_EQ(bytes.size(), sizeof(T));
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

TEST(DcpTest, ModelOfAccelerateHasEveryRecordedSum) {
  const DcpSource source(kMicro / "pytorch_model_fsdp_0");
  const auto names = stored_training(source).parameters;
  const auto expected = expected_of(kMicro)["model"];
  EXPECT_EQ(names.size(), expected.size());
  for (const auto& [parameter, tensor] : expected.items()) {
    const auto& name = names.at(parameter);
    EXPECT_EQ(source.info(name).shape, tensor["shape"].get<std::vector<int64_t>>());
    EXPECT_EQ(sha256(read_in_steps(source, name)), tensor["sha256"].get<std::string>())
        << parameter;
    EXPECT_EQ(sha256(read_in_steps(source, name, 37)), tensor["sha256"].get<std::string>())
        << parameter;
  }
}

TEST(DcpTest, OptimizerOfAccelerateHasEveryRecordedSum) {
  const DcpSource source(kMicro / "optimizer_0");
  const auto training = stored_training(source);
  EXPECT_EQ(training.step, 5);
  EXPECT_TRUE(training.parameters.empty());
  EXPECT_EQ(training.states.size(), 2U);
  const auto expected = expected_of(kMicro)["optimizer"];
  size_t compared = 0;
  for (const auto& [state, names] : training.states) {
    for (const auto& [parameter, name] : names) {
      const auto& tensor = expected.at(fmt::format("{}.{}", parameter, state));
      EXPECT_EQ(sha256(read_in_steps(source, name)), tensor["sha256"].get<std::string>()) << name;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 42U);  // of 21 parameters
  EXPECT_EQ(number<float>(source, "optimizer.state.lm_head.weight.step"), 5);
}

TEST(DcpTest, SingleObjectsAreNumbersOrListed) {
  const DcpSource optimizer(kMicro / "optimizer_0");
  EXPECT_EQ(number<double>(optimizer, "optimizer.param_groups.0.weight_decay"), 0.1);
  EXPECT_EQ(number<bool>(optimizer, "optimizer.param_groups.0.fused"), true);
  EXPECT_EQ(optimizer.objects().at("optimizer.param_groups.0.params"), "a list of 21");
  EXPECT_EQ(optimizer.objects().at("optimizer.param_groups.0.betas"), "a tuple of 2");

  const DcpSource mixed(kMixed);
  EXPECT_EQ(number<int64_t>(mixed, "number"), 5);
  EXPECT_EQ(number<int64_t>(mixed, "big"), int64_t{1} << 40);
  EXPECT_EQ(number<double>(mixed, "real"), 0.1);
  EXPECT_EQ(number<int64_t>(mixed, "nested.b.1"), 3);
  EXPECT_EQ(mixed.objects().at("nothing"), "None");
  EXPECT_NE(mixed.objects().at("path").find("refused pathlib.PosixPath"), std::string::npos);
  EXPECT_EQ(mixed.keys("nested.b.0"), (std::vector<std::string>{"nested", "b", "0"}));
}

TEST(DcpTest, EveryDtypeAndShardingHasTheRecordedSum) {
  const DcpSource source(kMixed);
  const auto expected = expected_of(kMixed);
  for (const auto& [name, tensor] : expected.items()) {
    ASSERT_TRUE(source.contains(name)) << name;
    EXPECT_EQ(source.info(name).shape, tensor["shape"].get<std::vector<int64_t>>());
    for (const int64_t step : {0, 1, 3}) {
      EXPECT_EQ(sha256(read_in_steps(source, name, step)), tensor["sha256"].get<std::string>())
          << name << " in steps of " << step;
    }
  }
}

TEST(DcpTest, ChunksMayBeInSafetensorsFiles) {
  const DcpSource torch(kMixed), safetensors("tests/fixtures/dcp_safetensors");
  for (const auto* name : {"grid", "cols"})
    EXPECT_EQ(read_in_steps(safetensors, name, 2), read_in_steps(torch, name)) << name;
}

class BrokenDcpTest : public ::testing::Test {
 protected:
  BrokenDcpTest() {
    for (const auto& entry : fs::directory_iterator(kMixed))
      fs::copy(entry.path(), folder_.path() / entry.path().filename());
  }

  /// The refusal of the copy whose `.metadata` has the first `from` (after `after`) replaced by
  /// `to`.
  std::string with(std::string_view from, std::string_view to, std::string_view after = "") {
    auto bytes = read_file(kMixed / ".metadata");
    const auto at = bytes.find(from, bytes.find(after));
    EXPECT_NE(at, std::string::npos) << from;
    folder_.write(".metadata", bytes.replace(at, from.size(), to));
    const auto line = refusal([&] { DcpSource source(folder_.path()); });
    EXPECT_EQ(line.rfind(folder_.path().string(), 0), 0U) << line;
    return line.substr(std::min(line.size(), folder_.path().string().size()));
  }

  TemporaryFolder folder_;
};

TEST_F(BrokenDcpTest, FilesAreMissingOrShort) {
  fs::resize_file(folder_.path() / "__3_0.distcp", 20000);
  EXPECT_NE(refusal([&] { DcpSource source(folder_.path()); }).find("__3_0.distcp: truncated: "),
            std::string::npos);
  fs::remove(folder_.path() / "__3_0.distcp");
  EXPECT_NE(refusal([&] {
              DcpSource source(folder_.path());
            }).find(".metadata: names the file \"__3_0.distcp\", which is missing"),
            std::string::npos);
  fs::remove(folder_.path() / ".metadata");
  EXPECT_FALSE(is_dcp(folder_.path()));
  EXPECT_NE(refusal([&] { DcpSource source(folder_.path()); }).find(".metadata"),
            std::string::npos);
}

TEST_F(BrokenDcpTest, BytesAreDamaged) {
  auto bytes = read_file(kMixed / "__0_0.distcp");
  for (size_t i = 0; i < bytes.size(); i += 8) bytes[i] = 'x';
  folder_.write("__0_0.distcp", bytes);
  const DcpSource source(folder_.path());
  EXPECT_NE(
      refusal([&] { read_in_steps(source, "rows"); }).find("__0_0.distcp: what begins at byte"),
      std::string::npos);
}

TEST_F(BrokenDcpTest, MetadataIsDamaged) {
  EXPECT_NE(with("StorageMeta", "StorageMetb").find("refused torch.distributed.checkpoint"),
            std::string::npos);
  EXPECT_NE(with("__0_0.distcp", "../_0.distcp").find("expected a file in its own folder"),
            std::string::npos);
  EXPECT_NE(with("__0_0.distcp", "/_0_0.distcp").find("expected a file in its own folder"),
            std::string::npos);
  EXPECT_NE(with("relative_path", "relative_patg").find("relative_path is missing"),
            std::string::npos);
  EXPECT_NE(with("float32", "float65").find("refused torch.float65"), std::string::npos);
  // rows: 7 rows in chunks of 2, 2, 2, 1
  EXPECT_NE(with("K\7K\5\x86", "K\xf0K\5\x86", "rows").find("\"rows\": its chunks hold 35 of 1200"),
            std::string::npos);
  EXPECT_NE(with("K\7K\5\x86", "K\6K\5\x86", "rows").find("a chunk reaches outside the tensor"),
            std::string::npos);
  EXPECT_NE(with("K\2K\5\x86", "K\1K\5\x86", "sizes").find("\"rows\": its chunks"),
            std::string::npos);
}

TEST(DcpTest, KnowsItsFolders) {
  EXPECT_TRUE(is_dcp(kMixed));
  EXPECT_FALSE(is_dcp(kMicro));
  EXPECT_NE(refusal([] { DcpSource source("tests/fixtures/llama_micro"); }).find(".metadata"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::checkpoint
