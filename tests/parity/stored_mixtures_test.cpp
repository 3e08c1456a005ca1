// Mixtures as files hold them: all experts of a layer in one tensor, experts that lack, and dense models
// that become one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/formats/convert.h"
#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/formats/reshard.h"
#include "tessera/checkpoint/formats/write_tensor.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/checkpoint/write_checkpoint.h"
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
              ::testing::HasSubstr(": expected shape ["));
  const auto more = folder_.path() / "more";
  write_fused(from, shape.experts.num, more);
  auto config = models::read_json_object(more / "config.json", "model_type");
  for (const auto* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    if (config.contains(key)) config[key] = shape.experts.num / 2;
  }
  if (config.contains("n_group")) config["n_group"] = config["topk_group"] = 1;
  write_file(more / "config.json", config.dump());
  EXPECT_THAT(testing::message_of([&] { loaded(more); }),
              ::testing::HasSubstr(": expected shape ["));
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

// Scales as compressed-tensors and fbgemm write them: one, one for each row, one for each group of a row, one for each block.
TEST(ScaledWeights, OfEvenPartsAreTheNumbersTimesTheirScales) {
  const testing::TemporaryFolder folder;
  const auto from = fs::path("tests/fixtures/llama_micro");
  write_file(folder.path() / "config.json", read_file(from / "config.json"));
  std::map<std::string, torch::Tensor> expected, held;
  const checkpoint::SafetensorsFile stored(from / "model.safetensors");
  int kind = 0;
  for (const auto& [name, info] : stored.tensors()) {
    expected[name] = held[name] = checkpoint::read_tensor(stored, name);
    if (name.find("_proj") == std::string::npos) continue;
    const auto weight = expected[name];
    const int64_t rows = weight.size(0), columns = weight.size(1);
    const std::vector<std::vector<int64_t>> shapes{{},
                                                   {1},
                                                   {rows},
                                                   {rows, 1},
                                                   {rows, columns / 4},
                                                   {(rows + 127) / 128, (columns + 127) / 128}};
    const auto scales = torch::rand(shapes[static_cast<size_t>(kind % 6)]) + 0.5;
    const std::array codes_of{weight.to(torch::kFloat8_e4m3fn), weight.to(torch::kFloat8_e5m2),
                              (weight * 100).round().clamp(-127, 127).to(torch::kInt8)};
    const auto& codes = codes_of[static_cast<size_t>(kind % 3)];
    const bool by_blocks = kind++ % 6 == 5;
    auto each = scales.dim() == 2 ? scales : scales.reshape({-1, 1});
    if (by_blocks) {  // the last ones are smaller
      each = each.repeat_interleave(128, 0).repeat_interleave(128, 1);
      each = each.slice(0, 0, rows).slice(1, 0, columns);
    } else {
      each = each.expand({rows, -1}).repeat_interleave(columns / each.size(1), 1);
    }
    expected[name] = codes.to(torch::kFloat32) * each;
    held[name] = codes, held[name + "_scale"] = scales;
    held[name.substr(0, name.size() - 6) + "input_scale"] = torch::ones({1});  // of activations
  }
  ASSERT_GE(kind, 10);
  const auto file = folder.path() / "model.safetensors";
  checkpoint::save_safetensors(file, held);
  const auto model = loaded(folder.path());
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), expected.at(item.key()))) << item.key();
  }
  const std::string first = "model.layers.0.mlp.down_proj.weight";
  const auto refusal_with = [&](const std::string& name, const torch::Tensor& tensor) {
    auto other = held;
    other[name] = tensor;
    checkpoint::save_safetensors(file, other);
    return testing::message_of([&] { loaded(folder.path()); });
  };
  EXPECT_THAT(refusal_with(first + "_scale", torch::ones({3, 1})),
              ::testing::HasSubstr("a scale for each block of 128 x 128, or [64, 1] or [1], got"));
  EXPECT_THAT(refusal_with(first + "_zero_point", torch::ones({1})),
              ::testing::HasSubstr("got more than that; store it as floats"));
  // Without a scale no one knows what whole numbers stand for.
  EXPECT_THAT(refusal_with("model.norm.weight", torch::ones({64}, torch::kInt8)),
              ::testing::HasSubstr("got I8 alone"));
}

// Which of the two a model was trained with, its files alone do not tell.
TEST(TiedHead, RefusesAFileWithAnotherHead) {
  const testing::TemporaryFolder folder;
  const auto from = fs::path("tests/fixtures/llama_micro");
  auto config = models::read_json_object(from / "config.json", "model_type");
  config["tie_word_embeddings"] = true;
  write_file(folder.path() / "config.json", config.dump());
  std::map<std::string, torch::Tensor> held;
  const checkpoint::SafetensorsFile stored(from / "model.safetensors");
  for (const auto& [name, info] : stored.tensors())
    held[name] = checkpoint::read_tensor(stored, name);
  const auto file = folder.path() / "model.safetensors";
  held["lm_head.weight"] = held.at("model.embed_tokens.weight").to(torch::kBFloat16);
  held["model.embed_tokens.weight"] = held["lm_head.weight"].to(torch::kFloat32);
  checkpoint::save_safetensors(file, held);
  loaded(folder.path());
  held["lm_head.weight"][5][3] += 1;
  checkpoint::save_safetensors(file, held);
  for (const auto& load :
       {std::function<void()>([&] { loaded(folder.path()); }), std::function<void()>([&] {
          checkpoint::convert({.from = {.source = folder.path()},
                               .to = checkpoint::Target::huggingface,
                               .destination = folder.path() / "out"});
        })}) {
    EXPECT_THAT(testing::message_of(load),
                ::testing::HasSubstr("'lm_head.weight' differs from 'model.embed_tokens.weight'"));
  }
}

/// A gpt-oss as OpenAI publishes it, and what its parameters must be.
struct Published {
  nlohmann::json config;
  std::map<std::string, torch::Tensor> stored, parameters;

  fs::path write(const fs::path& folder) const {
    fs::create_directories(folder);
    write_file(folder / "config.json", config.dump());
    checkpoint::save_safetensors(folder / "model.safetensors", stored);
    return folder;
  }
};

constexpr const char* kExperts = "model.layers.0.mlp.experts.";

/// The number [e, output, input] of codes in MXFP4.
float number_at(const torch::Tensor& blocks, const torch::Tensor& scales, int64_t e, int64_t output,
                int64_t input) {
  constexpr float kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int byte = blocks.accessor<uint8_t, 4>()[e][output][input / 32][input % 32 / 2];
  const int code = input % 2 == 0 ? byte & 15 : byte >> 4;
  const int scale = scales.accessor<uint8_t, 3>()[e][output][input / 32];
  const float value = std::ldexp(kValues[code & 7], scale - 127);
  return code >= 8 ? -value : value;
}

/// Adds random codes under `name`; returns the numbers [E, outputs, inputs] that they stand for.
torch::Tensor add_codes(const std::string& name, int64_t experts, int64_t outputs, int64_t inputs,
                        Published& model) {
  const auto blocks = torch::randint(256, {experts, outputs, inputs / 32, 16}, torch::kByte);
  const auto scales = torch::randint(100, 150, {experts, outputs, inputs / 32}, torch::kByte);
  scales.flatten()[0] = 0, scales.flatten()[1] = 254;  // the smallest; beyond the largest float
  const auto numbers = torch::empty({experts, outputs, inputs});
  auto to = numbers.accessor<float, 3>();
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t output = 0; output < outputs; ++output) {
      for (int64_t input = 0; input < inputs; ++input) {
        to[e][output][input] = number_at(blocks, scales, e, output, input);
      }
    }
  }
  model.stored[name + "_blocks"] = blocks, model.stored[name + "_scales"] = scales;
  return numbers;
}

Published published(int64_t dim, int64_t inside) {
  torch::manual_seed(1);
  Published model{.config = models::read_json_object(fixture("gpt_oss") / "config.json", ""),
                  .stored = {},
                  .parameters = {}};
  model.config["hidden_size"] = dim, model.config["intermediate_size"] = inside;
  const auto shape = models::model_shape_of(model.config, "config.json");
  model.config["quantization_config"] = {{"quant_method", "mxfp4"}};
  for (const auto& item : models::make_language_model(shape)->named_parameters()) {
    if (item.key().find(".experts.") != std::string::npos) continue;
    const auto value = torch::randn(item.value().sizes()).to(torch::kBFloat16);
    model.stored[item.key()] = value, model.parameters[item.key()] = value.to(torch::kFloat32);
  }
  const int64_t experts = shape.experts.num;
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const auto prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    const auto gate_up = add_codes(prefix + "gate_up_proj", experts, 2 * inside, dim, model);
    const auto down = add_codes(prefix + "down_proj", experts, dim, inside, model);
    const auto gate_up_bias = torch::randn({experts, 2 * inside}).to(torch::kBFloat16);
    const auto down_bias = torch::randn({experts, dim}).to(torch::kBFloat16);
    model.stored[prefix + "gate_up_proj_bias"] = gate_up_bias;
    model.stored[prefix + "down_proj_bias"] = down_bias;
    for (int64_t e = 0; e < experts; ++e) {
      const auto own = fmt::format("{}{}.", prefix, e);
      model.parameters[own + "gate_proj.weight"] = gate_up[e].slice(0, 0, 2 * inside, 2);
      model.parameters[own + "up_proj.weight"] = gate_up[e].slice(0, 1, 2 * inside, 2);
      model.parameters[own + "down_proj.weight"] = down[e];
      model.parameters[own + "gate_proj.bias"] = gate_up_bias[e].slice(0, 0, 2 * inside, 2);
      model.parameters[own + "up_proj.bias"] = gate_up_bias[e].slice(0, 1, 2 * inside, 2);
      model.parameters[own + "down_proj.bias"] = down_bias[e];
    }
  }
  return model;
}

void expect_parameters(const fs::path& folder, const Published& expected) {
  const auto found = loaded(folder)->named_parameters();
  ASSERT_EQ(found.size(), expected.parameters.size());
  for (const auto& item : found) {
    const auto want = expected.parameters.at(item.key()).to(torch::kFloat32);
    EXPECT_TRUE(torch::equal(item.value(), want)) << item.key();
  }
}

/// Width and inner width of a model; alike, so that shapes do not tell which way a matrix lies.
class PublishedGptOss : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {
 protected:
  const testing::TemporaryFolder folder_;
  const Published model_ = published(GetParam().first, GetParam().second);
  const fs::path source_ = model_.write(folder_.path() / "published");
};

TEST_P(PublishedGptOss, ParametersAreWhatTheCodesSay) {
  expect_parameters(source_, model_);
  // Any part of each, as ranks read them.
  const auto model = models::make_language_model(models::read_model_shape(source_ / "config.json"),
                                                 torch::device(torch::kMeta));
  const checkpoint::Pretrained stored(*model, source_);
  EXPECT_EQ(stored.note_of_unread(), "");
  std::mt19937 random(2);
  for (const auto& [name, whole] : model_.parameters) {
    const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(whole.numel()));
    const auto count =
        1 + static_cast<int64_t>(random() % static_cast<uint64_t>(whole.numel() - begin));
    const auto part = torch::empty({count});
    stored.copy_part(name, begin, part);
    const auto expected = whole.to(torch::kFloat32).flatten().slice(0, begin, begin + count);
    EXPECT_TRUE(torch::equal(part, expected)) << name << " from " << begin << ", " << count;
  }
}

TEST_P(PublishedGptOss, IsExportedAsFloatsThatTransformersLoads) {
  const auto at_once = folder_.path() / "at_once", ours = folder_.path() / "ours",
             theirs = folder_.path() / "theirs";
  checkpoint::convert(
      {.from = {.source = source_}, .to = checkpoint::Target::huggingface, .destination = at_once});
  checkpoint::convert(
      {.from = {.source = source_}, .to = checkpoint::Target::tessera, .destination = ours});
  checkpoint::convert(
      {.from = {.source = ours}, .to = checkpoint::Target::huggingface, .destination = theirs});
  const auto [dim, inside] = GetParam();
  for (const auto& folder : {at_once, theirs}) {
    EXPECT_FALSE(
        models::read_json_object(folder / "config.json", "").contains("quantization_config"));
    expect_parameters(folder, model_);
    const checkpoint::SafetensorsFile stored(folder / "model.safetensors");
    EXPECT_EQ(stored.tensors().size(), model_.stored.size() - 2 * 2) << "two tables of each layer";
    const auto gate_up = checkpoint::read_tensor(stored, std::string(kExperts) + "gate_up_proj");
    const auto down = checkpoint::read_tensor(stored, std::string(kExperts) + "down_proj");
    ASSERT_EQ(gate_up.sizes(), torch::IntArrayRef({6, dim, 2 * inside}));
    ASSERT_EQ(down.sizes(), torch::IntArrayRef({6, inside, dim}));
    for (int64_t e = 0; e < 6; ++e) {
      const auto of = [&, e = e](const char* name) {
        return model_.parameters.at(fmt::format("{}{}.{}.weight", kExperts, e, name)).t();
      };
      EXPECT_TRUE(torch::equal(gate_up[e].slice(1, 0, 2 * inside, 2), of("gate_proj"))) << e;
      EXPECT_TRUE(torch::equal(gate_up[e].slice(1, 1, 2 * inside, 2), of("up_proj"))) << e;
      EXPECT_TRUE(torch::equal(down[e], of("down_proj"))) << e;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PublishedGptOss,
                         ::testing::Values(std::pair<int64_t, int64_t>{64, 32},
                                           std::pair<int64_t, int64_t>{64, 64}),
                         [](const auto& sizes) {
                           return sizes.param.first == sizes.param.second ? "Square" : "Oblong";
                         });

TEST(GptOssFiles, AreRefusedInOneLine) {
  const testing::TemporaryFolder folder;
  const auto good = published(64, 32);
  const std::string gate_up = std::string(kExperts) + "gate_up_proj",
                    down = std::string(kExperts) + "down_proj";
  int number = 0;
  // What is said of the model after a change, behind the folder's name.
  const auto message = [&](const auto& change) {
    auto model = good;
    change(model.stored);
    const auto path = model.write(folder.path() / std::to_string(number++));
    const auto said = testing::message_of([&] { loaded(path); });
    return said.starts_with(path.string()) ? said.substr(path.string().size()) : said;
  };
  using Tensors = std::map<std::string, torch::Tensor>;
  EXPECT_EQ(message([&](Tensors& t) { t.erase(down + "_scales"); }),
            ": expected a tensor '" + down + "_scales' with a scale for each block of '" + down +
                "_blocks', found none");
  EXPECT_EQ(
      message([&](Tensors& t) {
        t[down + "_scales"] = torch::zeros({6, 64, 2}, torch::kByte);
      }),
      ": '" + down +
          "_scales': expected U8 [6, 64, 1], a scale for each block of codes, got U8 [6, 64, 2]");
  EXPECT_EQ(
      message([&](Tensors& t) {
        t[down + "_scales"] = torch::zeros({6, 64, 1});
      }),
      ": '" + down +
          "_scales': expected U8 [6, 64, 1], a scale for each block of codes, got F32 [6, 64, 1]");
  EXPECT_EQ(
      message([&](Tensors& t) {
        t[down + "_blocks"] = torch::zeros({6, 64, 1, 16}, torch::kChar);
      }),
      ": '" + down + "_blocks': expected U8 codes in blocks, [.., 16], got I8 [6, 64, 1, 16]");
  for (const auto& shape : std::vector<std::vector<int64_t>>{{6, 64, 1, 8}, {0, 64, 1, 16}, {16}}) {
    EXPECT_EQ(message([&](Tensors& t) { t[down + "_blocks"] = torch::zeros(shape, torch::kByte); }),
              fmt::format(": '{}_blocks': expected U8 codes in blocks, [.., 16], got U8 [{}]", down,
                          fmt::join(shape, ", ")));
  }
  EXPECT_EQ(message([&](Tensors& t) {
              t[down] = torch::zeros({6, 32, 64});
            }),
            ": holds '" + down + "' and codes for it, '" + down + "_blocks'; expected one of them");
  const auto lacks_expert = [&](Tensors& t) {
    for (const auto* ending : {"_blocks", "_scales"}) {
      t[gate_up + ending] = t.at(gate_up + ending).slice(0, 0, 4).contiguous();
    }
  };
  EXPECT_EQ(message(lacks_expert), ": '" + gate_up +
                                       "_blocks': expected shape [6, 64, 64], which holds '" +
                                       kExperts + "0.gate_proj.weight', got [4, 64, 64]");
  const auto of_floats = [&](std::vector<int64_t> shape) {
    return [&, shape](Tensors& t) {
      t.erase(down + "_blocks"), t.erase(down + "_scales");
      t[down] = torch::zeros(shape);
    };
  };
  EXPECT_EQ(message(of_floats({6, 32, 64})), "no error") << "other layers' codes beside floats";
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {6, 64, 32}, {5, 32, 64}, {6, 31, 64}, {6 * 32, 64}, {6 * 32 * 64}, {6, 0, 64}}) {
    EXPECT_EQ(
        message(of_floats(shape)),
        fmt::format(
            ": '{}': expected shape [6, 32, 64], which holds '{}0.down_proj.weight', got [{}]",
            down, kExperts, fmt::join(shape, ", ")));
  }
  EXPECT_EQ(message([&](Tensors& t) {
              t[gate_up + "_bias"] = torch::zeros({6, 63});
            }),
            ": '" + gate_up + "_bias': expected shape [6, 64], which holds '" + kExperts +
                "0.gate_proj.bias', got [6, 63]");
  EXPECT_EQ(message([&](Tensors& t) { t.erase(gate_up + "_bias"); }),
            ": expected a tensor '" + std::string(kExperts) + "0.gate_proj.bias', found none");
}

class StoredTogether : public ::testing::TestWithParam<std::string> {};

// What an optimizer keeps of parameters goes where they go.
TEST_P(StoredTogether, ACheckpointInOneFileHasTheFamilysNames) {
  const testing::TemporaryFolder folder;
  const auto training = checkpoint::open_training({.source = fixture(GetParam())});
  checkpoint::SourceView tensors("a run");
  for (const auto& [name, info] : training.tensors.tensors()) {
    tensors.add(name, training.tensors, name);
    tensors.add("optimizer/exp_avg/" + name, training.tensors, name);
  }
  checkpoint::write_checkpoint(tensors, folder.path() / "ours", {.about = training.about});
  checkpoint::reshard({.source = folder.path() / "ours",
                       .destination = folder.path() / "resharded",
                       .num_files = 3});
  EXPECT_EQ(checkpoint::Checkpoint(folder.path() / "resharded").tensors(), tensors.tensors());
  checkpoint::reshard(
      {.source = folder.path() / "ours", .destination = folder.path() / "one.safetensors"});
  const checkpoint::SafetensorsFile one(folder.path() / "one.safetensors");
  const checkpoint::SafetensorsFile stored(fixture(GetParam()) / "model.safetensors");
  EXPECT_EQ(one.tensors().size(), 2 * stored.tensors().size());
  for (const auto& name : stored.names()) {
    const auto expected = checkpoint::read_tensor(stored, name);
    for (const auto* prefix : {"", "optimizer/exp_avg/"}) {
      EXPECT_TRUE(torch::equal(checkpoint::read_tensor(one, prefix + name), expected))
          << prefix << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StoredTogether, ::testing::Values("gpt_oss", "phi3", "mixtral"),
                         [](const auto& family) { return family.param; });

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
      "in every layer, got a ";
  for (const auto& [name, type] : std::map<std::string, std::string>{
           {"llama_biases", "llama"}, {"gemma2", "gemma2"}, {"mixtral", "mixtral"}}) {
    EXPECT_EQ(message(name, 4, 2), fixture(name).string() + expected + type);
  }
  EXPECT_FALSE(fs::exists(folder.path() / "out"));
}

}  // namespace
}  // namespace tessera
