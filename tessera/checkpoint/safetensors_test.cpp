#include "tessera/checkpoint/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>

#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/data/batch.h"
#include "tessera/data/dataset.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using data::testing::bytes_of;
using data::testing::refusal;
using tessera::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kFixtures = "tests/fixtures";

/// The recipe of the fixtures' weights: a function of name, seed and position.
float recipe_weight(std::string_view name, uint64_t seed, uint64_t position) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  uint64_t z = (hash ^ (seed * 0x9E3779B97F4A7C15)) + (position + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  z = z ^ (z >> 31);
  const auto k = static_cast<int64_t>(z >> 40) - (int64_t{1} << 23);
  return static_cast<float>(static_cast<double>(k) *
                            ((0.02 * std::sqrt(3.0)) / static_cast<double>(1 << 23)));
}

TEST(SafetensorsFile, ReadsTheFixtureBitForBit) {
  const SafetensorsFile file(kFixtures / "llama_micro/model.safetensors");
  EXPECT_EQ(file.names().size(), 21u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const std::string name :
       {"model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.down_proj.weight"}) {
    const auto tensor = read_tensor(file, name);
    const auto* values = tensor.const_data_ptr<float>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      ASSERT_EQ(values[i], recipe_weight(name, 1234, static_cast<uint64_t>(i))) << name << " " << i;
    }
  }
  EXPECT_TRUE(read_tensor(file, "model.norm.weight").eq(1).all().item<bool>());
  EXPECT_EQ(file.info("lm_head.weight").shape, (std::vector<int64_t>{256, 64}));
}

TEST(SafetensorsFile, TheFirstBatchOfTheFixtureIsOurs) {
  const auto datasets = data::open_datasets({.train = {.paths = {kFixtures / "tokens_head.bin"}},
                                             .validation_fraction = 0,
                                             .seq_len = 64,
                                             .vocab_size = 256});
  const auto batch = data::Loader(std::make_shared<data::Dataset>(datasets.train),
                                  {.global_batch = 8, .shuffle = false})
                         .batch(0);
  const SafetensorsFile expected(kFixtures / "llama_micro/expected.safetensors");
  EXPECT_TRUE(batch.inputs.equal(read_tensor(expected, "input_ids").to(at::kLong)));
  EXPECT_TRUE(batch.targets.equal(read_tensor(expected, "targets").to(at::kLong)));
}

TEST(SafetensorsFile, CopiesAndConverts) {
  const SafetensorsFile file(kFixtures / "llama_micro/model.safetensors");
  const auto destination = at::empty({256, 64}, at::kBFloat16);
  read_into(file, "lm_head.weight", 0, destination.view(-1));
  EXPECT_TRUE(destination.equal(read_tensor(file, "lm_head.weight").to(at::kBFloat16)));
  EXPECT_THAT(refusal([&] { read_tensor(file, "lm_head.weigth"); }),
              AllOf(HasSubstr("holds no tensor 'lm_head.weigth'"),
                    HasSubstr("did you mean 'lm_head.weight'?")));
}

TEST(SafetensorsFile, CopiesWhatIsNotAligned) {
  const TemporaryFolder folder;
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  for (size_t spaces = 0; spaces < 4; ++spaces) {
    const auto padded = header + std::string(spaces, ' ');
    const auto path =
        folder.write("x.safetensors", bytes_of<int64_t>({static_cast<int64_t>(padded.size())}) +
                                          padded + bytes_of<float>({5, -6}));
    const auto tensor = read_tensor(SafetensorsFile(path), "a");
    EXPECT_EQ(tensor[0].item<float>(), 5);
    EXPECT_EQ(tensor[1].item<float>(), -6);
  }
}

TEST(Pretrained, CopiesStripesOfAParameter) {
  const TemporaryFolder folder;
  const auto stored = at::arange(5 * 7 * 3, at::kFloat).reshape({5, 7, 3});
  save_safetensors(folder.path() / "model.safetensors", {{"weight", stored}});
  torch::nn::Module model;
  model.register_parameter("weight", at::zeros({5, 7, 3}));
  const Pretrained pretrained(model, folder.path());

  const Stripe stripe{2 * 3, 4 * 3, 7 * 3};
  const auto expected = stored.slice(1, 2, 6).reshape({-1});
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const auto& [begin, end] : {std::pair(0, 60), {0, 7}, {11, 12}, {5, 31}, {60, 60}}) {
      const auto part = at::zeros({end - begin}, dtype);
      pretrained.copy_part("weight", begin, part, stripe);
      EXPECT_TRUE(part.equal(expected.slice(0, begin, end).to(dtype))) << begin << " " << end;
    }
  }
  const auto whole = at::zeros({100});
  pretrained.copy_part("weight", 5, whole);
  EXPECT_TRUE(whole.equal(stored.reshape({-1}).slice(0, 5)));
}

TEST(Pretrained, NamesWhatHasNoPlaceInTheModel) {
  const TemporaryFolder folder;
  torch::nn::Module model;
  model.register_parameter("weight", at::zeros({2}));
  std::map<std::string, at::Tensor> tensors{
      {"weight", at::ones({2})},
      {"0.attn.masked_bias", at::ones({1})},          // a buffer
      {"0.e_score_correction_bias", at::ones({1})}};  // whoever has routers reads it
  const auto note = [&] {
    save_safetensors(folder.path() / "model.safetensors", tensors);
    return Pretrained(model, folder.path()).note_of_unread();
  };
  EXPECT_EQ(note(), "");
  tensors["bias"] = tensors["norm"] = at::ones({2});
  EXPECT_THAT(note(), HasSubstr("has no place for it: bias, norm (2 of 5 tensors)"));
  tensors["u"] = tensors["v"] = at::ones({1});
  EXPECT_THAT(note(), HasSubstr("bias, norm, u, .."));
}

TEST(OpenCheckpoint, ShardsEqualTheSingleFile) {
  const auto single = Safetensors(kFixtures / "llama_micro");
  for (const auto& path : {kFixtures / "llama_micro_sharded",
                           kFixtures / "llama_micro_sharded/model.safetensors.index.json"}) {
    const auto sharded = Safetensors(path);
    EXPECT_EQ(sharded.shards().size(), 3u);
    ASSERT_EQ(sharded.tensors(), single.tensors());
    for (const auto& [name, info] : single.tensors())
      EXPECT_TRUE(read_tensor(sharded, name).equal(read_tensor(single, name))) << name;
  }
  EXPECT_EQ(Safetensors(kFixtures / "gpt2_micro/model.safetensors").shards().size(), 1u);
}

TEST(OpenCheckpoint, RefusesAFolderWithoutWeights) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal([&] { Safetensors(folder.path()); }),
              HasSubstr("in this folder, got neither"));
  EXPECT_THAT(refusal([&] { Safetensors(folder.path() / "none.safetensors"); }),
              HasSubstr("none.safetensors"));
}

TEST(OpenCheckpoint, RefusesABrokenIndex) {
  const TemporaryFolder folder;
  save_safetensors(folder.path() / "s.safetensors", {{"a", at::zeros({2})}, {"b", at::zeros({3})}});
  const auto line = [&](const std::string& index) {
    const auto path = folder.write("model.safetensors.index.json", index);
    return refusal([&] { Safetensors(folder.path()); });
  };
  EXPECT_EQ(
      line(
          R"({"metadata":{"total_size":20},"weight_map":{"a":"s.safetensors","b":"s.safetensors"}})"),
      "(accepted)");
  EXPECT_EQ(line(R"({"metadata":{"total_size":8.0},"weight_map":{"a":"s.safetensors"}})"),
            "(accepted)");
  EXPECT_THAT(line("weight_map"), HasSubstr("index.json: expected JSON"));
  EXPECT_THAT(line("[]"), HasSubstr("expected an object with \"weight_map\""));
  EXPECT_THAT(line(R"({"weight_map":[]})"), HasSubstr("expected an object with \"weight_map\""));
  EXPECT_THAT(line(R"({"weight_map":{}})"), HasSubstr("weight_map is empty"));
  EXPECT_THAT(line(R"({"weight_map":{"a":1}})"), HasSubstr("\"a\": expected the name of a shard"));
  EXPECT_THAT(line(R"({"weight_map":{"a":"s.safetensors","a":"s.safetensors"}})"),
              HasSubstr("stands twice"));
  EXPECT_THAT(line(R"({"weight_map":{"a":"t.safetensors"}})"),
              HasSubstr("names the shard t.safetensors, which is missing"));
  EXPECT_THAT(line(R"({"weight_map":{"c":"s.safetensors"}})"),
              HasSubstr("\"c\" is not in s.safetensors"));
  EXPECT_THAT(line(R"({"weight_map":{"a":"../s.safetensors"}})"),
              HasSubstr("expected shards in its own folder"));
  EXPECT_THAT(line(R"({"weight_map":{"a":"x/../../s.safetensors"}})"),
              HasSubstr("expected shards in its own folder"));
  EXPECT_THAT(line(R"({"weight_map":{"a":"/s.safetensors"}})"),
              HasSubstr("expected shards in its own folder"));
  EXPECT_THAT(line(R"({"weight_map":{"a":""}})"), HasSubstr("expected shards in its own folder"));
  EXPECT_THAT(
      line(
          R"({"metadata":{"total_size":21},"weight_map":{"a":"s.safetensors","b":"s.safetensors"}})"),
      HasSubstr("its total_size is 21, but its tensors take 20 bytes"));
}

TEST(SaveSafetensors, IsReadBackForEveryDtype) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  std::map<std::string, at::Tensor> tensors;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                           at::kShort, at::kChar, at::kByte, at::kBool, at::kFloat8_e4m3fn,
                           at::kFloat8_e5m2, at::kUInt16, at::kUInt32, at::kUInt64}) {
    tensors[std::string("t.") + c10::toString(dtype)] =
        at::arange(15, at::kFloat).reshape({3, 5}).to(dtype);
  }
  tensors["scalar"] = at::zeros({}, at::kFloat) + 2.5;
  tensors["empty"] = at::zeros({0, 4}, at::kHalf);
  tensors["transposed"] = at::arange(6, at::kInt).reshape({2, 3}).t();
  tensors["with gradient"] = at::randn({3}).requires_grad_();
  save_safetensors(path, tensors, {{"format", "pt"}, {"note", "ä\n"}});

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}, {"note", "ä\n"}}));
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const auto read = read_tensor(file, name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    ASSERT_EQ(read.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(read.to(at::kDouble).equal(tensor.detach().to(at::kDouble))) << name;
    EXPECT_EQ(file.offset(name) % static_cast<int64_t>(tensor.element_size()), 0) << name;
  }
  int64_t header = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header), 8);
  EXPECT_EQ(header % 8, 0);
}

TEST(SaveSafetensors, RefusesWhatTheFormatCannotHoldAndLeavesNothing) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  EXPECT_THAT(refusal([&] {
                save_safetensors(path, {{"a", at::zeros({1}, at::kComplexHalf)}});
              }),
              HasSubstr("cannot hold the dtype ComplexHalf"));
  EXPECT_THAT(
      refusal([&] {
        save_safetensors(path, {{"__metadata__", at::zeros({1})}});
      }),
      HasSubstr("expected every tensor under a name of its own, and none named __metadata__"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace tessera::checkpoint
