// Adapters of tensors that hold all experts of a layer, as PEFT's target_parameters has them, and of single experts: read, written, and
// what a model with them computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/models/adapt.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/language_model.h"
#include "tessera/models/spec.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using models::AdapterSpec;
using models::AdapterType;
using models::ExpertFormat;
using ::testing::HasSubstr;
using testing::message_of;

constexpr int64_t kRank = 3, kDownRank = 2;
constexpr double kAlpha = 6, kDownAlpha = 5;

fs::path fixture(const std::string& name) { return fs::path("tests/fixtures/families") / name; }

models::ModelShape shape_of(const std::string& family) {
  return models::read_model_shape(fixture(family) / "config.json");
}

std::shared_ptr<models::LanguageModel> loaded(const std::string& family) {
  auto model = models::make_language_model(shape_of(family));
  checkpoint::load_pretrained(*model, fixture(family));
  return model;
}

torch::Tensor logits(models::LanguageModel& model) {
  const torch::NoGradGuard no_grad;
  model.eval();
  return model.logits(torch::arange(40).view({2, 20}));
}

void expect_same(const torch::Tensor& found, const torch::Tensor& expected) {
  EXPECT_LT((found - expected).abs().max().item<double>(), 1e-5);
}

torch::Tensor logits_with(const std::string& family, const fs::path& adapter) {
  const checkpoint::PeftAdapter read(adapter, shape_of(family));
  const auto model = loaded(family);
  models::adapt(*model, read.config().spec);
  const torch::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters()) {
    if (!read.tensors().contains(item.key())) continue;
    item.value().copy_(checkpoint::read_tensor(read.tensors(), item.key()));
  }
  return logits(*model);
}

/// What PEFT's ParamWrapper adds to a tensor, as [E, outputs, inputs].
torch::Tensor change(const torch::Tensor& a, const torch::Tensor& b, int64_t experts,
                     double scale) {
  const auto lora_a = a.view({experts, -1, a.size(1)}), lora_b = b.view({b.size(0), -1, experts});
  return scale * torch::einsum("ore,eri->eoi", {lora_b, lora_a});
}

/// An adapter of all experts as PEFT saves it, of random numbers, and the model's weights with it in them.
struct Stored {
  nlohmann::json config{{"peft_type", "LORA"},
                        {"r", kRank},
                        {"lora_alpha", kAlpha},
                        {"target_modules", nlohmann::json::array()},
                        {"target_parameters", {"mlp.experts.gate_up_proj", "experts.down_proj"}},
                        {"rank_pattern", {{"experts.down_proj", kDownRank}}},
                        {"alpha_pattern", {{R"(.*\.down_proj)", kDownAlpha}}}};
  std::map<std::string, torch::Tensor> tensors;
  std::shared_ptr<models::LanguageModel> changed;

  fs::path write(const fs::path& folder) const {
    fs::create_directories(folder);
    write_file(folder / checkpoint::kPeftConfig, config.dump());
    checkpoint::save_safetensors(folder / checkpoint::kPeftWeights, tensors);
    return folder;
  }
};

Stored stored(const std::string& family) {
  torch::manual_seed(3);
  Stored result{.tensors = {}, .changed = loaded(family)};
  const auto shape = shape_of(family);
  const auto& names = models::spec_of(shape.family).mixture(shape);
  const int64_t experts = shape.experts.num, inside = shape.ffn_dim, dim = shape.dim;
  const auto parameters = result.changed->named_parameters();
  const torch::NoGradGuard no_grad;
  for (int64_t layer = shape.experts.num_dense_layers; layer < shape.num_layers; ++layer) {
    const auto key = fmt::format("base_model.model.model.layers.{}.mlp.experts.", layer);
    const auto draw = [&](const std::string& at, int64_t rank, int64_t outputs, int64_t inputs,
                          double scale) {
      const auto a = 0.2 * torch::randn({experts * rank, inputs});
      const auto b = 0.2 * torch::randn({outputs, rank * experts});
      result.tensors[at + "lora_A.weight"] = a, result.tensors[at + "lora_B.weight"] = b;
      return change(a, b, experts, scale);
    };
    const auto both = draw(key + "base_layer.", kRank, 2 * inside, dim, kAlpha / kRank);
    const auto down = draw(key, kDownRank, dim, inside, kDownAlpha / kDownRank);
    for (int64_t e = 0; e < experts; ++e) {
      const auto add = [&](const std::string& name, const torch::Tensor& to_add) {
        parameters[fmt::format("model.layers.{}.{}.experts.{}.{}.weight", layer, names.mixture, e,
                               name)]
            .add_(to_add);
      };
      const bool turns = names.alternating;
      add(names.gate, turns ? both[e].slice(0, 0, {}, 2) : both[e].slice(0, 0, inside));
      add(names.up, turns ? both[e].slice(0, 1, {}, 2) : both[e].slice(0, inside));
      add(names.down, down[e]);
    }
  }
  return result;
}

class PeftExperts : public ::testing::TestWithParam<std::string> {
 protected:
  const testing::TemporaryFolder folder_;
};

TEST_P(PeftExperts, OfAllTogetherAreReadAsPeftComputesThem) {
  const auto peft = stored(GetParam());
  const auto found = logits_with(GetParam(), peft.write(folder_.path() / "adapter"));
  const auto base = logits(*loaded(GetParam()));
  EXPECT_GT((found - base).abs().max().item<double>(), 1e-2);
  expect_same(found, logits(*peft.changed));
}

checkpoint::testing::MemorySource random_adapter(const AdapterSpec& spec,
                                                 const models::ModelShape& shape) {
  checkpoint::testing::MemorySource source;
  torch::manual_seed(4);
  for (const auto& p : models::trained_parameters(spec, shape)) {
    const auto values = 0.3 * torch::randn(p.shape);
    const auto* data = values.const_data_ptr<float>();
    source.add(p.name, checkpoint::DType::f32, p.shape,
               std::vector<float>(data, data + values.numel()));
  }
  return source;
}

TEST_P(PeftExperts, ComeBackInBothFormats) {
  const auto shape = shape_of(GetParam());
  const auto& names = models::spec_of(shape.family).mixture(shape);
  AdapterSpec spec{.type = AdapterType::lora, .rank = 2, .alpha = 3, .targets = {"all-linear"}};
  spec.rank_pattern = {{names.up, 3}, {"layers.1.*" + names.down, 4}};
  for (const bool rslora : {false, true}) {
    spec.rslora = rslora;
    const auto source = random_adapter(spec, shape);
    const auto fused = folder_.path() / fmt::format("fused_{}", rslora),
               single = folder_.path() / fmt::format("single_{}", rslora);
    checkpoint::write_peft(source, shape, fused, {.config = {.spec = spec}, .dtype = {}});
    checkpoint::write_peft(
        source, shape, single,
        {.config = {.spec = spec}, .dtype = {}, .experts = ExpertFormat::per_expert});
    EXPECT_EQ(checkpoint::PeftAdapter(single, shape).tensors().tensors(), source.tensors());
    expect_same(logits_with(GetParam(), fused), logits_with(GetParam(), single));
    const auto config = nlohmann::json::parse(read_file(fused / checkpoint::kPeftConfig));
    EXPECT_THAT(config["target_parameters"].dump(), HasSubstr("\"mlp.experts.gate_up_proj\""));
    EXPECT_EQ(config["rank_pattern"]["mlp.experts.gate_up_proj"], 5);
  }
}

TEST_P(PeftExperts, OneOfAnExpertsMatricesIsEnough) {
  const auto shape = shape_of(GetParam());
  const auto& names = models::spec_of(shape.family).mixture(shape);
  const AdapterSpec spec{.type = AdapterType::lora,
                         .rank = 2,
                         .alpha = 3,
                         .targets = {R"(.*\.experts\..*\.)" + names.up},
                         .layers = {1}};
  const auto source = random_adapter(spec, shape);
  const auto fused = folder_.path() / "fused", single = folder_.path() / "single";
  checkpoint::write_peft(source, shape, fused, {.config = {.spec = spec}, .dtype = {}});
  checkpoint::write_peft(
      source, shape, single,
      {.config = {.spec = spec}, .dtype = {}, .experts = ExpertFormat::per_expert});
  expect_same(logits_with(GetParam(), fused), logits_with(GetParam(), single));
  const checkpoint::SafetensorsFile stored(fused / checkpoint::kPeftWeights);
  const auto& a = stored.info("base_model.model.model.layers.1.mlp.experts.lora_A.weight");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2 * shape.experts.num, shape.dim}));
}

INSTANTIATE_TEST_SUITE_P(Families, PeftExperts,
                         ::testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "olmoe",
                                           "deepseek_v3", "gpt_oss"),
                         [](const auto& family) { return family.param; });

TEST(PeftExpertsErrors, FilesThatPeftRefusesOrThatDoNotFitAreRefusedInOneLine) {
  const testing::TemporaryFolder folder;
  const auto shape = shape_of("mixtral");
  const auto good = stored("mixtral");
  const auto message = [&](const std::function<void(Stored&)>& change) {
    auto bad = good;
    change(bad);
    fs::remove_all(folder.path() / "bad");
    const auto path = bad.write(folder.path() / "bad");
    return message_of([&] { const checkpoint::PeftAdapter read(path, shape); });
  };
  const std::string a = "base_model.model.model.layers.0.mlp.experts.lora_A.weight";
  const std::vector<std::pair<std::function<void(Stored&)>, std::string>> cases{
      {[](Stored& s) { s.config["use_dora"] = true; },
       "adapter_config.json: use_dora: 'true' is not supported; expected false beside "
       "target_parameters"},
      {[](Stored& s) { s.config["lora_dropout"] = 0.1; },
       "adapter_config.json: lora_dropout: '0.1' is not supported; expected 0 beside "
       "target_parameters"},
      {[](Stored& s) { s.config["init_lora_weights"] = "pissa"; },
       "is not supported; expected no pissa beside target_parameters"},
      {[](Stored& s) { s.config["target_parameters"] = {"mlp.gate.weight"}; },
       "adapter_config.json: target_parameters: 'mlp.gate.weight' is neither all experts"},
      {[](Stored& s) { s.config["exclude_modules"] = ".*experts[.]1[.].*"; },
       "is in model.layers.0.mlp.experts.gate_up_proj, and exclude_modules or modules_to_save"},
      {[&](Stored& s) {
         s.tensors[a] = torch::zeros({3 * kDownRank, 40});
       },
       "expected shape [8, 40] and floats, of 4 experts and rank 2, got [6, 40] of F32"},
      {[](Stored& s) { s.config["r"] = kRank + 1; },
       "of 4 experts and rank 4, got [12, 32] of F32"},
      {[&](Stored& s) { s.tensors.erase(a); }, "expected a tensor '" + a + "'"}};
  EXPECT_EQ(message([](Stored&) {}), "no error");
  for (const auto& [change, words] : cases) EXPECT_THAT(message(change), HasSubstr(words));
}

TEST(PeftExpertsErrors, WhatHasNoPlaceInOneTensorIsRefusedInOneLine) {
  const testing::TemporaryFolder folder;
  const auto message = [&](const std::string& family, const AdapterSpec& spec) {
    const auto shape = shape_of(family);
    const auto source = random_adapter(spec, shape);
    return message_of([&] {
      checkpoint::write_peft(source, shape, folder.path() / "out",
                             {.config = {.spec = spec}, .dtype = {}});
    });
  };
  EXPECT_THAT(message("mixtral", {.type = AdapterType::lora, .targets = {"experts.1.w1"}}),
              HasSubstr("targets: w1 has an adapter in 1 of 4 experts of "
                        "model.layers.0.mlp.experts.gate_up_proj, where PEFT has one"));
  EXPECT_THAT(
      message("gpt_oss", {.type = AdapterType::dora, .targets = {"down_proj"}}),
      HasSubstr("DoRA of model.layers.0.mlp.experts.down_proj: PEFT has LoRA alone of all experts "
                "together; merge the adapter (tessera merge-adapter)"));
  for (const auto* family : {"mixtral", "gpt_oss"}) {
    EXPECT_THAT(
        message(family,
                {.type = AdapterType::lora, .targets = {"q_proj"}, .modules_to_save = {"experts"}}),
        HasSubstr("leave experts out of modules_to_save and bias"));
  }
  const auto format = [](const char* fixture_name) {
    return message_of(
        [&] { checkpoint::check_expert_format(ExpertFormat::per_expert, shape_of(fixture_name)); });
  };
  EXPECT_EQ(format("mixtral"), "no error");
  EXPECT_EQ(format("qwen3"),
            "expert_format: is for mixtures, and a qwen3 has no experts; leave it out");
  EXPECT_EQ(format("gpt_oss"),
            "expert_format: expected fused for a gpt_oss, whose files have no single "
            "experts");
}

}  // namespace
}  // namespace tessera
