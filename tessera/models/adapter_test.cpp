#include "tessera/models/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/models/hf_config.h"

namespace tessera::models {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

/// What PEFT counted and stored (tests/fixtures/adapters/make.py).
const Json& counts() {
  static const Json json = Json::parse(std::ifstream("tests/fixtures/adapters/counts.json"));
  return json;
}

ModelShape shape_of(const std::string& model) {
  return model_shape_of(nlohmann::json(counts()["models"][model]), model);
}

std::vector<std::string> texts(const Json& settings, const char* key) {
  if (!settings.contains(key)) return {};
  if (settings[key].is_string()) return {settings[key].get<std::string>()};
  return settings[key].get<std::vector<std::string>>();
}

AdapterSpec spec_of(const Json& settings) {
  AdapterSpec spec{
      .type = settings.value("use_dora", false) ? AdapterType::dora : AdapterType::lora,
      .rank = settings.value("r", int64_t{8}),
      .rslora = settings.value("use_rslora", false),
      .targets = texts(settings, "target_modules"),
      .exclude = texts(settings, "exclude_modules"),
      .modules_to_save = texts(settings, "modules_to_save")};
  spec.bias = *value_named<AdapterBias>(settings.value("bias", "none"));
  if (settings.contains("layers_to_transform")) {
    const auto& layers = settings["layers_to_transform"];
    spec.layers =
        layers.is_array() ? layers.get<std::vector<int64_t>>() : std::vector{layers.get<int64_t>()};
  }
  if (settings.contains("rank_pattern")) {
    for (const auto& [pattern, rank] : settings["rank_pattern"].items()) {
      spec.rank_pattern.emplace_back(pattern, rank.get<int64_t>());
    }
  }
  return spec;
}

/// PEFT's names as ours. What it stores of a wrapped module's unused original is left out.
std::map<std::string, std::vector<int64_t>> expected_tensors(const Json& tensors) {
  std::map<std::string, std::vector<int64_t>> expected;
  for (const auto& [key, dims] : tensors.items()) {
    auto name = key;
    if (name.find(".original_module.") != std::string::npos) continue;
    for (const std::string part : {".base_layer", ".modules_to_save"}) {
      if (const auto at = name.find(part); at != std::string::npos) name.erase(at, part.size());
    }
    for (const std::string end : {".lora_A.weight", ".lora_B.weight"}) {
      if (name.ends_with(end)) name.erase(name.size() - std::string(".weight").size());
    }
    expected[name] = dims.get<std::vector<int64_t>>();
  }
  return expected;
}

TEST(AdapterTest, CountsAreThoseOfPeft) {
  ASSERT_GT(counts()["results"].size(), 60U);
  for (const auto& result : counts()["results"]) {
    SCOPED_TRACE(result["model"].get<std::string>() + " " + result["settings"].dump());
    const auto shape = shape_of(result["model"]);
    const auto spec = without_idle_entries(spec_of(result["settings"]), shape);
    EXPECT_EQ(num_parameters(shape), result["base"]);
    EXPECT_EQ(num_trained(spec, shape), result["trained"]);
  }
}

TEST(AdapterTest, NamesAndShapesAreThoseOfPeft) {
  for (const auto& result : counts()["results"]) {
    if (!result.contains("tensors")) continue;
    const std::string model = result["model"];
    if (model == "phi3" && result["settings"].contains("modules_to_save")) continue;  // fused there
    SCOPED_TRACE(model + " " + result["settings"].dump());
    const auto shape = shape_of(model);
    std::map<std::string, std::vector<int64_t>> ours;
    for (const auto& p :
         trained_parameters(without_idle_entries(spec_of(result["settings"]), shape), shape)) {
      EXPECT_TRUE(ours.emplace(p.name, p.shape).second) << p.name;
    }
    EXPECT_EQ(ours, expected_tensors(result["tensors"]));
  }
}

/// Runs of PEFT's method comparison on Llama-3.2-3B (LoRA, rank 32 on q and v; rank 10 on the MLP).
TEST(AdapterTest, CountsAreThoseOfPeftsMethodComparison) {
  const auto shape = shape_of("llama-3.2-3b");
  const AdapterSpec qv{.type = AdapterType::lora, .rank = 32, .targets = {"q_proj", "v_proj"}};
  EXPECT_EQ(num_parameters(shape) + num_trained(qv, shape), 3221924864);
  EXPECT_EQ(num_trained(qv, shape), 9175040);
  const AdapterSpec mlp{
      .type = AdapterType::lora, .rank = 10, .targets = {"down_proj", "gate_proj", "up_proj"}};
  EXPECT_EQ(num_trained(mlp, shape), 9461760);
}

TEST(AdapterTest, ScalesFollowRankAndAlpha) {
  AdapterSpec spec{.type = AdapterType::lora, .rank = 4, .alpha = 16, .targets = {"q_proj"}};
  spec.alpha_pattern = {{"layers.1.*", 8}};
  const auto shape = shape_of("llama");
  auto modules = adapted_modules(spec, shape);
  ASSERT_EQ(modules.size(), 3U);
  EXPECT_EQ(modules[0].scale, 4);
  EXPECT_EQ(modules[1].scale, 2);
  spec.rslora = true;
  EXPECT_EQ(adapted_modules(spec, shape)[0].scale, 8);
}

TEST(AdapterTest, ModulesSayTheirSides) {
  AdapterSpec spec{.type = AdapterType::lora, .rank = 2, .targets = {"c_attn", "wte"}};
  const auto modules = adapted_modules(spec, shape_of("gpt2"));
  ASSERT_EQ(modules.size(), 3U);
  const AdaptedModule table{.path = "transformer.wte",
                            .rank = 2,
                            .alpha = 8,
                            .scale = 4,
                            .embedding = true,
                            .inputs = 97,
                            .outputs = 24,
                            .inputs_first = true};
  EXPECT_EQ(modules[0], table);
  EXPECT_EQ(modules[1].inputs, 24);
  EXPECT_EQ(modules[1].outputs, 72);
  EXPECT_TRUE(modules[1].inputs_first);
}

/// Phi-3's files have one qkv_proj where a model has three matrices.
TEST(AdapterTest, FusedModulesAreNamedEitherWay) {
  const auto shape = shape_of("phi3");
  const auto paths = [&](const std::string& target) {
    std::vector<std::string> names;
    const AdapterSpec spec{.type = AdapterType::lora, .rank = 2, .targets = {target}};
    for (const auto& module : adapted_modules(spec, shape)) names.push_back(module.path);
    return names;
  };
  EXPECT_THAT(
      paths("model.layers.1.self_attn.qkv_proj"),
      ::testing::ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj",
                             "model.layers.1.self_attn.v_proj"));
  EXPECT_EQ(paths("k_proj").size(), 2U);
  EXPECT_EQ(paths("all-linear").size(), 14U);
}

// As of PEFT, whose linear layers a router is none of: of a block four of attention, three of each expert.
TEST(AdapterTest, ARouterIsNoLinearLayer) {
  const auto shape = read_model_shape("tests/fixtures/mixtral_micro/config.json");
  const auto modules =
      adapted_modules({.type = AdapterType::lora, .targets = {"all-linear"}}, shape);
  EXPECT_EQ(std::ssize(modules), shape.num_layers * (4 + 3 * shape.experts.num));
  EXPECT_THAT(testing::message_of([&] {
                adapted_modules({.type = AdapterType::lora, .targets = {"gate"}}, shape);
              }),
              HasSubstr("adapter.targets: 'gate' matches no matrix"));
}

TEST(AdapterTest, RanksTrainAsManyExpertsEach) {
  const auto shape = read_model_shape("tests/fixtures/mixtral_micro/config.json");
  AdapterSpec spec{.type = AdapterType::lora, .targets = {"w1", "q_proj"}};
  EXPECT_EQ(uneven_experts(spec, shape, 2), std::nullopt);
  spec.targets = {"experts.0.w1", "q_proj"};
  EXPECT_EQ(uneven_experts(spec, shape, 1), std::nullopt);
  EXPECT_EQ(
      uneven_experts(spec, shape, 2).value_or(""),
      "model.layers.0.block_sparse_moe.experts.*.w1.lora_A is trained in 0 experts of one rank "
      "and 1 of another of parallel.ep 2; take all experts of a layer, or set parallel.ep to 1");
  spec.targets = {"q_proj"}, spec.modules_to_save = {"experts.1"};
  EXPECT_NE(uneven_experts(spec, shape, 2), std::nullopt);
}

TEST(AdapterTest, RowsOfExpertsAreNotDropped) {
  const auto shape = read_model_shape("tests/fixtures/mixtral_micro/config.json");
  AdapterSpec spec{.type = AdapterType::lora, .dropout = 0.1, .targets = {"w2"}};
  EXPECT_THAT(testing::message_of([&] { adapted_modules(spec, shape); }),
              HasSubstr("adapter.dropout: expected 0 with adapters in experts "
                        "(model.layers.0.block_sparse_moe.experts.0.w2), got 0.1"));
  spec.targets = {"q_proj"};
  EXPECT_FALSE(adapted_modules(spec, shape).empty());
}

// all-linear has the gate of the shared expert, of one row; decomposed it has one vector.
TEST(AdapterTest, ARankMayBeAboveASmallerSide) {
  const auto shape = read_model_shape("tests/fixtures/families/qwen2_moe/config.json");
  AdapterSpec spec{.type = AdapterType::lora, .rank = 16, .targets = {"all-linear"}};
  EXPECT_FALSE(adapted_modules(spec, shape).empty());
  spec.init = AdapterInit::pissa;
  EXPECT_THAT(testing::message_of([&] { adapted_modules(spec, shape); }),
              HasSubstr("adapter.rank: expected 1 to 1, the smaller side of "
                        "model.layers.0.mlp.shared_expert_gate (1 x 32), got 16"));
}

TEST(AdapterTest, ATiedHeadIsTheTable) {
  auto shape = shape_of("llama");
  shape.tie_embeddings = true;
  AdapterSpec spec{.type = AdapterType::lora, .rank = 2, .targets = {"q_proj"}};
  spec.modules_to_save = {"lm_head"};
  EXPECT_EQ(trained_parameters(spec, shape).back().name, "model.embed_tokens.weight");
}

TEST(AdapterTest, FrozenMatricesHaveNoGradientToCompute) {
  const auto shape = model_preset("micro");
  const double all = training_flops_per_token(shape, 64);
  EXPECT_EQ(adapter_flops_per_token({}, shape, 64), all);
  AdapterSpec spec{.type = AdapterType::lora, .rank = 4, .targets = {"q_proj"}};
  const double weights = 2.0 * (8192 + 4096 + 33792) + 16384;  // as ModelShapeTest has them
  const double own = 2.0 * 4 * (64 + 64);
  EXPECT_EQ(adapter_flops_per_token(spec, shape, 64), all - 2 * weights + 6 * own);
  spec.modules_to_save = {"lm_head", "norm"};
  EXPECT_EQ(adapter_flops_per_token(spec, shape, 64), all - 2 * (weights - 16384) + 6 * own);
  spec.modules_to_save = {"embed_tokens"};  // looked up
  EXPECT_EQ(adapter_flops_per_token(spec, shape, 64), all - 2 * weights + 6 * own);
}

TEST(AdapterTest, WithoutAnAdapterAllIsTrained) {
  const auto shape = shape_of("gpt2");
  EXPECT_EQ(num_trained({}, shape), num_parameters(shape));
  EXPECT_TRUE(adapted_modules({}, shape).empty());
}

std::string error_of(const AdapterSpec& spec, const std::string& model = "llama") {
  try {
    trained_parameters(spec, shape_of(model));
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(AdapterTest, SlipsAreNamed) {
  AdapterSpec spec{.type = AdapterType::lora, .rank = 4, .targets = {"q_proj", "v_prj"}};
  EXPECT_EQ(
      error_of(spec),
      "adapter.targets: 'v_prj' matches no matrix of the model, whose modules are down_proj, "
      "embed_tokens, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj; did you mean "
      "'v_proj'?");
  spec.targets = {"(q_proj"};
  EXPECT_THAT(error_of(spec),
              HasSubstr("adapter.targets: expected a name of modules or a regular"));
  // A pattern of an adapter from elsewhere that takes 2^n steps where matching goes back and forth.
  spec.targets = {"(((a|.)*)*)*zz!"};
  EXPECT_THAT(error_of(spec), HasSubstr("'(((a|.)*)*)*zz!' matches no matrix of the model"));
  spec.targets = {".*q_proj"};
  spec.exclude = {"q_proj"};
  EXPECT_THAT(error_of(spec), HasSubstr("adapter.targets: .*q_proj leave no module"));
  spec.exclude = {};
  spec.layers = {3};
  EXPECT_EQ(error_of(spec),
            "adapter.layers: expected numbers in [0, 2], the model's blocks, got 3");
  spec.layers = {};
  spec.rank_pattern = {{"k_proj", 2}};
  EXPECT_EQ(error_of(spec), "adapter.rank_pattern: 'k_proj' matches no module that has an adapter");
  spec.rank_pattern = {};
  spec.modules_to_save = {"lm_hed"};
  EXPECT_EQ(
      error_of(spec),
      "adapter.modules_to_save: 'lm_hed' matches no module of the model; did you mean 'lm_head'?");
  spec.modules_to_save = {};
  spec.targets = {"k_proj"};
  spec.rank = 25;
  EXPECT_EQ(error_of(spec),
            "adapter.rank: expected 1 to 24, the larger side of model.layers.0.self_attn.k_proj (8 "
            "x 24), got 25");
  EXPECT_THAT(error_of({.type = AdapterType::lora}, "phi3"),
              HasSubstr("adapter.targets: a phi3 has no usual ones; set all-linear"));
}

}  // namespace
}  // namespace tessera::models
