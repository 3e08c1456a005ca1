#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/run_config.h"
#include "tessera/models/shape.h"

namespace tessera::config {
namespace {

using namespace models;

std::string resolve_error(const ModelSection& model) {
  try {
    resolve_model_shape(model);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelShapeTest, PresetsHaveThePublishedNumberOfParameters) {
  const std::vector<std::pair<std::string, int64_t>> published = {
      {"micro", 125'248},
      {"tiny", 3'950'848},
      {"small", 58'073'600},
      {"gpt2", 124'439'808},
      {"llama-3.2-1b", 1'235'814'400},
      {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496},
      {"llama-3.1-405b", 405'853'388'800}};
  EXPECT_EQ(model_preset_names().size(), published.size());
  for (const auto& [name, count] : published) {
    const auto shape = model_preset(name);
    EXPECT_EQ(num_parameters(shape), count) << name;
    EXPECT_FALSE(shape_problem(shape)) << name;
    EXPECT_EQ(shape.dim, shape.num_heads * shape.head_dim) << name;
  }
  EXPECT_EQ(model_preset("tiny"), ModelShape{});
}

TEST(ModelShapeTest, UnknownPreset) {
  EXPECT_THROW(
      {
        try {
          model_preset("llama-3-9b");
        } catch (const UserError& error) {
          EXPECT_TRUE(
              std::string(error.what()).ends_with("got 'llama-3-9b'; did you mean 'llama-3-8b'?"))
              << error.what();
          throw;
        }
      },
      UserError);
}

TEST(ModelShapeTest, FlopsPerToken) {
  // micro: block 64*64*2 + 64*32*2 + 3*64*176, two of them, and the head 64*256.
  const double products = 2 * (8192 + 4096 + 33792) + 16384;
  EXPECT_EQ(training_flops_per_token(model_preset("micro"), 64), 6 * products + 6 * 2 * 64 * 64);
  // Tying the head changes memory, not work.
  auto tied = model_preset("micro");
  tied.tie_embeddings = true;
  EXPECT_EQ(training_flops_per_token(tied, 64),
            training_flops_per_token(model_preset("micro"), 64));
}

TEST(ModelShapeTest, AWindowSavesTheFlopsOfTheKeysItHides) {
  auto shape = model_preset("micro");
  const double full = training_flops_per_token(shape, 64);
  shape.sliding_window = 64;
  EXPECT_EQ(training_flops_per_token(shape, 64), full);
  shape.sliding_window = 16;  // of 64 queries: 16 * 16 / 2 + 48 * 16 keys, not 64 * 64 / 2
  const double hidden = 64.0 / 2 - (16 * 16 / 2.0 + 48 * 16) / 64.0;
  EXPECT_EQ(training_flops_per_token(shape, 64), full - 12 * 2 * 64 * hidden);
  shape.num_full_layers = 1;
  EXPECT_EQ(training_flops_per_token(shape, 64), full - 12 * 64 * hidden);
}

TEST(ModelShapeTest, BiasesAndHeadNormsAreCounted) {
  const auto with = [](auto change) {
    auto shape = model_preset("micro");
    change(shape);
    return num_parameters(shape) - num_parameters(model_preset("micro"));
  };
  EXPECT_EQ(with([](auto& s) { s.qkv_bias = true; }), 2 * (64 + 2 * 32));
  EXPECT_EQ(with([](auto& s) { s.out_bias = true; }), 2 * 64);
  EXPECT_EQ(with([](auto& s) { s.mlp_bias = true; }), 2 * (2 * 176 + 64));
  EXPECT_EQ(with([](auto& s) { s.qk_norm = true; }), 2 * 2 * 16);
}

TEST(ModelShapeTest, OverridesChangeThePreset) {
  const auto shape = resolve_model_shape({.preset = "gpt2",
                                          .vocab_size = 100,
                                          .num_layers = 3,
                                          .dim = 96,
                                          .num_heads = 6,
                                          .tie_embeddings = false});
  EXPECT_EQ(shape, (ModelShape{.family = ModelFamily::gpt2,
                               .vocab_size = 100,
                               .dim = 96,
                               .num_layers = 3,
                               .num_heads = 6,
                               .num_kv_heads = 6,
                               .head_dim = 16,
                               .ffn_dim = 384,
                               .max_seq_len = 1024}));
  const auto grouped =
      resolve_model_shape({.preset = "tiny", .ffn_dim = 100, .num_heads = 16, .num_kv_heads = 2});
  EXPECT_EQ(grouped.head_dim, 16);
  EXPECT_EQ(grouped.num_kv_heads, 2);
  EXPECT_EQ(grouped.ffn_dim, 100);
  EXPECT_EQ(resolve_model_shape({.path = "tests/fixtures/llama_micro", .num_layers = 1}).num_layers,
            1);
}

TEST(ModelShapeTest, OverridesThatDoNotDivideAreErrors) {
  const std::string advice = "; set a model.dim that is a multiple of model.num_heads";
  EXPECT_EQ(resolve_error({.num_heads = 12}),
            "model.num_heads: 12 heads do not divide a width of 256" + advice);
  EXPECT_EQ(resolve_error({.dim = 100}),
            "model.dim: 8 heads do not divide a width of 100" + advice);
  EXPECT_EQ(resolve_error({.num_kv_heads = 3}),
            "model.num_kv_heads: expected a divisor of the 8 query heads, got 3");
  EXPECT_EQ(resolve_error({.dim = 24}),
            "model.head_dim: expected an even number for rotary positions, got 3");
  EXPECT_EQ(resolve_error({.num_heads = 0}),
            "model.num_heads: expected a whole number in [1, 4096], got 0");
  EXPECT_EQ(
      resolve_error({.preset = "gpt2", .num_kv_heads = 4}),
      "model.num_kv_heads: expected 12, the number of heads: gpt2 has no grouped queries; got 4");
  EXPECT_EQ(resolve_error({.path = "absent"}),
            "absent/config.json: cannot be opened: No such file or directory");
}

TEST(ModelShapeTest, TheTypeAskedForMustBeTheTypeThere) {
  const std::string mistral = "tests/fixtures/families/mistral";
  EXPECT_EQ(resolve_model_shape({.path = mistral, .type = "mistral"}),
            resolve_model_shape({.path = mistral}));
  EXPECT_EQ(resolve_error({.path = mistral, .type = "llama"}),
            mistral +
                "/config.json: model_type: expected llama, which model.type asks for, got "
                "mistral; set model.type to auto");
  EXPECT_EQ(resolve_model_shape({.preset = "gpt2", .type = "gpt2"}), model_preset("gpt2"));
  EXPECT_EQ(resolve_error({.preset = "small", .type = "gpt2"}),
            "model.type: model.preset small is a llama, got gpt2; remove one of the two");
}

TEST(ModelShapeTest, RanksShareOutExpertsEvenly) {
  ModelSection section;
  section.path = "tests/fixtures/experts_micro";
  const auto shape = resolve_model_shape(section);
  EXPECT_EQ(experts_problem(shape, {.dp_shard = 4, .ep = 4}), std::nullopt);
  const auto problem = experts_problem(shape, {.dp_shard = 12, .ep = 3});
  ASSERT_TRUE(problem);
  // Not 8, which the ranks cannot have.
  EXPECT_EQ(problem->message, "8 experts cannot be shared out over 3 ranks; set one of 1, 2, 4");
  EXPECT_EQ(experts_problem(models::model_preset("tiny"), {}), std::nullopt);
}

}  // namespace
}  // namespace tessera::config
