// Folders that bitsandbytes quantised (tests/fixtures/bitsandbytes/make.py): the logits of transformers with bitsandbytes.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/bitsandbytes.h"
#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/models/hf_config.h"
#include "tessera/nn/quantised_weight.h"
#include "tests/parity/fixture.h"
#include "tests/support/temporary_folder.h"

namespace tessera::parity {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = "tests/fixtures/bitsandbytes";

std::shared_ptr<models::LanguageModel> loaded(const std::string& name) {
  auto model =
      models::make_language_model(models::read_model_shape(kFolder / name / "config.json"));
  checkpoint::load_pretrained(*model, kFolder / name);
  model->eval();
  return model;
}

void expect_logits(models::LanguageModel& model, const std::string& name) {
  const torch::NoGradGuard no_grad;
  const auto stored = read_fixture("bitsandbytes/logits.json")[name].get<std::vector<float>>();
  const auto expected = torch::tensor(stored).view({1, 16, 64});
  const auto logits = model.logits(torch::arange(16).view({1, 16}));
  EXPECT_LE((logits - expected).abs().max().item<double>(),
            1e-5 * expected.abs().max().item<double>());
}

TEST(BitsAndBytes, AFolderGivesItsLogits) {
  for (const char* name : {"nf4_double", "fp4"}) {
    SCOPED_TRACE(name);
    expect_logits(*loaded(name), name);
  }
}

/// Quantised again, the weights have the codes that are stored.
TEST(BitsAndBytes, QuantisedAgainCodesAreTheSame) {
  for (const auto& [name, format] : std::map<std::string, WeightFormat>{
           {"nf4_double", WeightFormat::nf4}, {"fp4", WeightFormat::fp4}}) {
    SCOPED_TRACE(name);
    auto model = loaded(name);
    const auto layers =
        nn::quantise_linear_layers(*model, model->layout().layers, {.format = format});
    EXPECT_EQ(layers.size(), 14);
    const checkpoint::Safetensors stored(kFolder / name);
    const auto parameters = model->named_parameters();
    for (const auto& layer : layers) {
      const auto codes = checkpoint::read_tensor(stored, layer.path + ".weight").flatten();
      const auto ours = parameters[layer.path + ".weight"].flatten();
      // FP4 has two codes of zero.
      const auto differ = codes.ne(ours).sum().item<int64_t>();
      EXPECT_LE(differ, format == WeightFormat::fp4 ? codes.numel() / 10 : 0) << layer.path;
    }
    expect_logits(*model, name);
  }
}

/// What is said of a folder in which `change` was made to the file.
std::string problem_with(const std::function<void(std::string& bytes)>& change) {
  const testing::TemporaryFolder folder;
  auto bytes = read_file(kFolder / "nf4_double" / "model.safetensors");
  change(bytes);
  const auto path = folder.path() / "model.safetensors";
  write_file(path, bytes);
  try {
    checkpoint::open_safetensors(path);
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with(path.string() + ": ")) << text;
    return text.substr(std::min(text.size(), path.string().size() + 2));
  }
  return "";
}

void replace_first(std::string& bytes, std::string_view from, std::string_view to) {
  ASSERT_EQ(from.size(), to.size());
  const auto at = bytes.find(from);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, from.size(), to);
}

TEST(BitsAndBytes, WhatIsWrongIsSaidInOneLine) {
  EXPECT_EQ(problem_with([](std::string&) {}), "");
  const auto replaced = [](std::string_view from, std::string_view to) {
    return problem_with([=](std::string& bytes) { replace_first(bytes, from, to); });
  };
  const std::string first = "'model.layers.0.mlp.down_proj.weight";
  EXPECT_EQ(replaced("down_proj.weight.quant_state.bitsandbytes__nf4",
                     "down_proj.weight.quant_state.bitsandbytes__nf5"),
            first +
                ".quant_state.bitsandbytes__nf5': expected the state of a weight in 4 bits, got "
                "type 'nf5', which is not nf4 or fp4");
  EXPECT_EQ(replaced("down_proj.weight.absmax", "down_proj.weight.absmux"),
            "expected a tensor " + first + ".absmax' of a quantised weight, found none");
  EXPECT_NE(replaced("\"blocksize\": 64", "\"blocksize\": 32").find("': expected "),
            std::string::npos);
  EXPECT_NE(replaced("{\"quant_type\"", "[\"quant_type\"").find("no JSON object"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::parity
