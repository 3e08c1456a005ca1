// Mixtures as files hold them: all experts of a layer in one tensor, experts that lack, and dense models
// that become one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/checkpoint/formats/convert.h"
#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/formats/write_tensor.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/language_model.h"
#include "tessera/models/spec.h"
#include "tests/support/expect.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

fs::path fixture(const std::string& name) { return fs::path("tests/fixtures/families") / name; }

std::shared_ptr<models::LanguageModel> loaded(const fs::path& folder) {
  auto model = models::make_language_model(models::read_model_shape(folder / "config.json"));
  checkpoint::load_pretrained(*model, folder);
  return model;
}

torch::Tensor logits(const fs::path& folder) {
  const torch::NoGradGuard no_grad;
  const checkpoint::SafetensorsFile expected(fixture("llama_tied") / "expected.safetensors");
  return loaded(folder)->logits(checkpoint::read_tensor(expected, "input_ids"));
}

void write_model(const checkpoint::SourceView& tensors, const fs::path& config,
                 const fs::path& folder) {
  fs::create_directories(folder);
  fs::copy_file(config, folder / "config.json");
  checkpoint::write_safetensors(tensors, {tensors.tensors().begin(), tensors.tensors().end()},
                                folder / "model.safetensors", {});
}

/// Writes the fixture's model as transformers 5 has it in memory; of the last `experts` alone.
void write_fused(const fs::path& from, int64_t experts, const fs::path& to) {
  const auto shape = models::read_model_shape(from / "config.json");
  const auto& names = models::spec_of(shape.family).mixture(shape);
  const checkpoint::SafetensorsFile stored(from / "model.safetensors");
  checkpoint::SourceView fused(from);
  const auto inside = "." + names.mixture + ".", in_memory = std::string(".mlp.");
  for (const auto& [name, info] : stored.tensors()) {
    if (name.find(".experts.") != std::string::npos) continue;
    auto renamed = name;
    const auto at = name.find(inside);
    if (at != std::string::npos) renamed.replace(at, inside.size(), in_memory);
    fused.add(renamed, stored, name);
  }
  for (int64_t layer = shape.experts.num_dense_layers; layer < shape.num_layers; ++layer) {
    const auto block = fmt::format("model.layers.{}", layer);
    const auto together = block + in_memory + "experts.";
    for (int64_t e = shape.experts.num - experts; e < shape.experts.num; ++e) {
      const auto of = [&](const std::string& matrix) {
        return fmt::format("{}{}experts.{}.{}.weight", block, inside, e, matrix);
      };
      fused.append_rows(together + "gate_up_proj", stored, of(names.gate));
      fused.append_rows(together + "gate_up_proj", stored, of(names.up));
      fused.append_rows(together + "down_proj", stored, of(names.down));
    }
    fused.reshape(together + "gate_up_proj", {experts, 2 * shape.ffn_dim, shape.dim});
    fused.reshape(together + "down_proj", {experts, shape.dim, shape.ffn_dim});
  }
  write_model(fused, from / "config.json", to);
}

class StoredMixtureTest : public ::testing::TestWithParam<std::string> {
 protected:
  const testing::TemporaryFolder folder_;
};

TEST_P(StoredMixtureTest, AllExpertsInOneTensorAreEachTheirOwn) {
  const auto from = fixture(GetParam());
  const auto fused = folder_.path() / "fused";
  write_fused(from, models::read_model_shape(from / "config.json").experts.num, fused);
  const auto expected = loaded(from)->named_parameters(), found = loaded(fused)->named_parameters();
  for (const auto& item : expected) {
    EXPECT_TRUE(torch::equal(item.value(), found[item.key()])) << item.key();
  }
  // A checkpoint, and what is exported of that, has each expert by itself.
  checkpoint::convert({.from = {.source = fused},
                       .to = checkpoint::Target::tessera,
                       .destination = folder_.path() / "ours"});
  checkpoint::convert({.from = {.source = folder_.path() / "ours"},
                       .to = checkpoint::Target::huggingface,
                       .destination = folder_.path() / "theirs"});
  EXPECT_EQ(checkpoint::SafetensorsFile(folder_.path() / "theirs" / "model.safetensors").tensors(),
            checkpoint::SafetensorsFile(from / "model.safetensors").tensors());
}

TEST_P(StoredMixtureTest, AMissingExpertIsNamed) {
  const auto from = fixture(GetParam());
  const auto shape = models::read_model_shape(from / "config.json");
  const auto& names = models::spec_of(shape.family).mixture(shape);
  const auto missing =
      fmt::format("model.layers.1.{}.experts.3.{}.weight", names.mixture, names.up);
  const checkpoint::SafetensorsFile stored(from / "model.safetensors");
  checkpoint::SourceView rest(from);
  for (const auto& [name, info] : stored.tensors()) {
    if (name != missing) rest.add(name, stored, name);
  }
  const auto folder = folder_.path() / "lacks_one";
  write_model(rest, from / "config.json", folder);
  EXPECT_EQ(testing::message_of([&] { loaded(folder); }),
            fmt::format("{}: expected a tensor '{}', found none", folder.string(), missing));
  const auto fewer = folder_.path() / "fewer";
  write_fused(from, shape.experts.num - 1, fewer);
  EXPECT_THAT(testing::message_of([&] { loaded(fewer); }),
              ::testing::HasSubstr(" rows in all, got shape ["));
  const auto more = folder_.path() / "more";
  write_fused(from, shape.experts.num, more);
  auto config = models::read_json_object(more / "config.json", "model_type");
  for (const auto* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    if (config.contains(key)) config[key] = shape.experts.num / 2;
  }
  if (config.contains("n_group")) config["n_group"] = config["topk_group"] = 1;
  write_file(more / "config.json", config.dump());
  EXPECT_THAT(testing::message_of([&] { loaded(more); }),
              ::testing::HasSubstr(" rows in all, got shape ["));
}

INSTANTIATE_TEST_SUITE_P(All, StoredMixtureTest,
                         ::testing::Values("mixtral", "qwen3_moe", "deepseek_v3"),
                         [](const auto& family) { return family.param; });

// As DeepSeek-V3's own files: a scale for each block, at the edges of fewer rows and columns.
TEST(ScaledWeights, AreTheNumbersTimesTheirScales) {
  const testing::TemporaryFolder folder;
  const auto from = fixture("deepseek_v3");
  auto config = models::read_json_object(from / "config.json", "model_type");
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {16, 24}}};
  folder.write("fp8/config.json", config.dump());
  std::map<std::string, torch::Tensor> expected, held;
  const checkpoint::SafetensorsFile stored(from / "model.safetensors");
  for (const auto& [name, info] : stored.tensors()) {
    auto weight = checkpoint::read_tensor(stored, name);
    const bool scaled = weight.dim() == 2 && name.find("_proj") != std::string::npos;
    if (scaled) {
      const auto rows = (weight.size(0) + 15) / 16, columns = (weight.size(1) + 23) / 24;
      const auto scales = torch::rand({rows, columns}) + 0.5;
      const auto codes = weight.to(torch::kFloat8_e4m3fn);
      const auto each = scales.repeat_interleave(16, 0)
                            .repeat_interleave(24, 1)
                            .slice(0, 0, weight.size(0))
                            .slice(1, 0, weight.size(1));
      weight = codes.to(torch::kFloat32) * each;
      held[name] = codes, held[name + "_scale_inv"] = scales;
    } else {
      held[name] = weight;
    }
    expected[name] = weight;
  }
  checkpoint::save_safetensors(folder.path() / "fp8" / "model.safetensors", held);
  const auto model = loaded(folder.path() / "fp8");
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), expected.at(item.key()))) << item.key();
  }
}

class UpcycledTest : public StoredMixtureTest {};

TEST_P(UpcycledTest, ComputesWhatTheDenseModelDoes) {
  const auto dense = logits(fixture(GetParam()));
  for (const int64_t top_k : {1, 2, 4}) {
    const auto folder = folder_.path() / fmt::format("mixture_{}", top_k);
    checkpoint::convert({.from = {.source = fixture(GetParam())},
                         .to = checkpoint::Target::huggingface,
                         .destination = folder,
                         .upcycle = checkpoint::UpcycleOptions{.num_experts = 4, .top_k = top_k}});
    const auto shape = models::read_model_shape(folder / "config.json");
    EXPECT_EQ(shape.experts.num, 4);
    EXPECT_EQ(shape.experts.top_k, top_k);
    EXPECT_LT((logits(folder) - dense).abs().max().item<double>(), 1e-5) << top_k;
  }
  // Tokens go to different experts from the first step on, so each learns something else.
  const auto model = loaded(folder_.path() / "mixture_2");
  const auto ids = torch::arange(64).view({2, 32});
  model->loss(ids, ids, 1.0).backward();
  std::vector<torch::Tensor> downs;
  for (const auto& item : model->named_parameters()) {
    const auto& name = item.key();
    const bool down = name.ends_with("w2.weight") || name.ends_with("down_proj.weight");
    if (down && name.starts_with("model.layers.0.")) downs.push_back(item.value().grad());
  }
  ASSERT_EQ(downs.size(), 4u);
  EXPECT_GT((downs[0] - downs[1]).abs().max().item<double>(), 0);
}

TEST_P(UpcycledTest, IsACheckpointThatTrainingBeginsWith) {
  const auto ours = folder_.path() / "ours", theirs = folder_.path() / "theirs";
  checkpoint::convert({.from = {.source = fixture(GetParam())},
                       .to = checkpoint::Target::tessera,
                       .destination = ours,
                       .upcycle = checkpoint::UpcycleOptions{.num_experts = 3, .seed = 5}});
  checkpoint::convert(
      {.from = {.source = ours}, .to = checkpoint::Target::huggingface, .destination = theirs});
  EXPECT_LT((logits(theirs) - logits(fixture(GetParam()))).abs().max().item<double>(), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, UpcycledTest,
                         ::testing::Values("llama_tied", "llama_yarn", "mistral", "qwen3"),
                         [](const auto& family) { return family.param; });

TEST(Upcycled, RefusesInOneLine) {
  const testing::TemporaryFolder folder;
  const auto message = [&](const std::string& name, int64_t experts, int64_t top_k) {
    return testing::message_of([&] {
      checkpoint::convert(
          {.from = {.source = fixture(name)},
           .to = checkpoint::Target::huggingface,
           .destination = folder.path() / "out",
           .upcycle = checkpoint::UpcycleOptions{.num_experts = experts, .top_k = top_k}});
    });
  };
  EXPECT_EQ(message("mistral", 1, 1), "--upcycle: expected 2 to 4096 experts, got 1");
  EXPECT_EQ(message("mistral", 4, 5),
            "--experts-per-token: expected 1 to 4, the number of experts, got 5");
  const std::string expected =
      ": --upcycle: expected a llama or mistral without biases, or a qwen3, with the same window "
      "in "
      "every layer, got a ";
  for (const auto& [name, type] : std::map<std::string, std::string>{
           {"llama_biases", "llama"}, {"gemma2", "gemma2"}, {"mixtral", "mixtral"}}) {
    EXPECT_EQ(message(name, 4, 2), fixture(name).string() + expected + type);
  }
  EXPECT_FALSE(fs::exists(folder.path() / "out"));
}

}  // namespace
}  // namespace tessera
