#include "tessera/checkpoint/formats/hf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using tessera::testing::TemporaryFolder;
using testing::Bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MemorySource;
using testing::read_all;

const fs::path kLlama = "tests/fixtures/llama_micro";

nlohmann::json json_in(const fs::path& path) { return nlohmann::json::parse(read_file(path)); }

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

Bytes as(const Bytes& bytes, DType from, DType to) {
  Bytes converted(bytes.size() / static_cast<size_t>(dtype_bytes(from)) *
                  static_cast<size_t>(dtype_bytes(to)));
  convert_values(bytes, from, converted, to);
  return converted;
}

class HfExport : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
  const fs::path out_ = folder_.path() / "out";
};

TEST_F(HfExport, WithoutConversionIsEqualByteForByte) {
  const Safetensors source(kLlama);
  export_hf(source, out_, {.config = json_in(kLlama / "config.json")});
  EXPECT_THAT(names_in(out_), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(names_in(folder_.path()).size(), 1U);  // no temporary folder
  const SafetensorsFile exported(out_ / "model.safetensors");
  EXPECT_EQ(exported.metadata(), (Metadata{{"format", "pt"}}));
  EXPECT_EQ(exported.tensors(), source.tensors());
  for (const auto& [name, info] : source.tensors()) {
    EXPECT_EQ(read_all(exported, name), read_all(source, name)) << name;
  }
  EXPECT_EQ(json_in(out_ / "config.json"), json_in(kLlama / "config.json"));
}

TEST_F(HfExport, ConvertsFloatsAndLeavesIntegers) {
  MemorySource source;
  source.add<float>("a", DType::f32, {3}, {1.0F, 1e30F, -0.1F});
  source.add<int64_t>("ids", DType::i64, {2}, {5, -6});
  export_hf(source, out_, {.config = {{"torch_dtype", "float32"}}, .dtype = DType::bf16});
  const Safetensors exported(out_);
  EXPECT_EQ(exported.info("a"), (TensorInfo{DType::bf16, {3}}));
  EXPECT_EQ(read_all(exported, "a"), as(read_all(source, "a"), DType::f32, DType::bf16));
  EXPECT_EQ(read_all(exported, "ids"), read_all(source, "ids"));
  EXPECT_EQ(exported.shards().front().names(), (std::vector<std::string>{"ids", "a"}));  // aligned
  EXPECT_EQ(json_in(out_ / "config.json"), (nlohmann::json{{"torch_dtype", "bfloat16"}}));
}

TEST_F(HfExport, TensorsLargerThanTheBufferArriveWhole) {
  MemorySource source;
  source.add_counting("large", {3, 400'001});
  export_hf(source, out_, {.dtype = DType::f64});
  EXPECT_EQ(read_all(Safetensors(out_), "large"),
            as(read_all(source, "large"), DType::f32, DType::f64));
  EXPECT_EQ(json_in(out_ / "config.json"), (nlohmann::json{{"dtype", "float64"}}));
}

TEST_F(HfExport, FillsShardsInTheOrderOfTheNames) {
  MemorySource source;
  source.add_counting("a", {10});
  source.add_counting("b", {30});  // larger than a shard
  source.add_counting("c", {10});
  source.add_counting("d", {10});
  source.add_counting("e", {1});
  source.add_counting("left out", {1});
  export_hf(source, out_,
            {.names = {"a", "b", "c", "d", "e"}, .config = {}, .max_shard_bytes = 80});
  EXPECT_THAT(names_in(out_),
              ElementsAre("config.json", "model-00001-of-00004.safetensors",
                          "model-00002-of-00004.safetensors", "model-00003-of-00004.safetensors",
                          "model-00004-of-00004.safetensors", "model.safetensors.index.json"));
  const auto index = json_in(out_ / "model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], 244);
  EXPECT_EQ(index["weight_map"], (nlohmann::json{{"a", "model-00001-of-00004.safetensors"},
                                                 {"b", "model-00002-of-00004.safetensors"},
                                                 {"c", "model-00003-of-00004.safetensors"},
                                                 {"d", "model-00003-of-00004.safetensors"},
                                                 {"e", "model-00004-of-00004.safetensors"}}));
  const Safetensors exported(out_);
  for (const auto& [name, info] : exported.tensors()) {
    EXPECT_EQ(read_all(exported, name), read_all(source, name)) << name;
  }
}

TEST_F(HfExport, CarriesTokenizerAndGenerationFiles) {
  MemorySource source;
  source.add_counting("a", {1});
  folder_.write("from/tokenizer.json", "{\"version\":\"1.0\"}");
  folder_.write("from/generation_config.json", "{}");
  folder_.write("from/pytorch_model.bin", "weights");
  export_hf(source, out_, {.carry_from = folder_.path() / "from"});
  EXPECT_THAT(names_in(out_), ElementsAre("config.json", "generation_config.json",
                                          "model.safetensors", "tokenizer.json"));
  EXPECT_EQ(read_file(out_ / "tokenizer.json"), "{\"version\":\"1.0\"}");
}

TEST_F(HfExport, RefusesInOneLineAndLeavesNothing) {
  const Safetensors source(kLlama);
  const auto refused = [&](const HfExportOptions& options) {
    return refusal([&] { export_hf(source, out_, options); });
  };
  EXPECT_THAT(refused({.names = {"model.norm.weigth"}}),
              HasSubstr("holds no tensor 'model.norm.weigth'; did you mean 'model.norm.weight'?"));
  EXPECT_THAT(refused({.dtype = DType::i32}), HasSubstr("F64, F32, F16 or BF16"));
  EXPECT_THAT(refused({.names = {"model.norm.weight", "model.norm.weight"}}),
              HasSubstr("of its own"));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  fs::create_directory(out_);
  EXPECT_THAT(refused({}), HasSubstr("out: exists; "));
  EXPECT_TRUE(fs::is_empty(out_));
  EXPECT_THROW(export_hf(source, "/proc/out", {}), SystemError);
}

}  // namespace
}  // namespace tessera::checkpoint
