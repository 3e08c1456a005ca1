#include "tessera/config/model_shape.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/config/run_config.h"

namespace tessera::config {
namespace {

using Json = nlohmann::json;

Json fixture(const std::string& name) {
  return Json::parse(read_file("tests/fixtures/" + name + "/config.json"));
}

/// A config.json that is gone with the test.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : folder_(::testing::TempDir() + "model_shape_test_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
    write_file(path(), text);
  }
  ~ConfigFile() { std::filesystem::remove_all(folder_); }
  std::filesystem::path path() const { return folder_ / "config.json"; }

 private:
  std::filesystem::path folder_;
};

ModelShape shape_of(const Json& json) { return read_model_shape(ConfigFile(json.dump()).path()); }

/// The error line after the file name.
std::string error_of(const std::string& text) {
  const ConfigFile file(text);
  try {
    read_model_shape(file.path());
  } catch (const UserError& error) {
    const std::string line = error.what(), prefix = file.path().string() + ": ";
    EXPECT_TRUE(line.starts_with(prefix)) << line;
    return line.substr(prefix.size());
  }
  return "no error";
}

std::string error_with(const std::string& name, const std::string& key, const Json& value) {
  auto json = fixture(name);
  json[key] = value;
  return error_of(json.dump());
}

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

TEST(ModelShapeTest, ReadsLlama) {
  EXPECT_EQ(read_model_shape("tests/fixtures/llama_micro/config.json"), model_preset("micro"));
  auto json = fixture("llama_micro");
  for (const auto* key : {"head_dim", "num_key_value_heads", "rope_theta", "rms_norm_eps",
                          "hidden_act", "attention_bias"}) {
    json.erase(key);
  }
  json["head_dim"] = nullptr;
  const auto shape = shape_of(json);
  EXPECT_EQ(shape.head_dim, 16);
  EXPECT_EQ(shape.num_kv_heads, 4);
  EXPECT_EQ(shape.rope_theta, 10000);
  EXPECT_EQ(shape.norm_eps, 1e-6);
}

TEST(ModelShapeTest, ReadsRotaryScalingOfBothGenerations) {
  const Json llama3 = {{"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  auto four = fixture("llama_micro");
  four["rope_theta"] = 500000.0;
  four["rope_scaling"] = llama3;
  four["rope_scaling"]["rope_type"] = "llama3";
  auto older = four;
  older["rope_scaling"].erase("rope_type");
  older["rope_scaling"]["type"] = "llama3";
  auto five = fixture("llama_micro");
  five.erase("rope_theta");
  five["rope_parameters"] = llama3;
  five["rope_parameters"]["rope_type"] = "llama3";
  five["rope_parameters"]["rope_theta"] = 500000.0;
  for (const auto& json : {four, older, five}) {
    const auto shape = shape_of(json);
    EXPECT_EQ(shape.rope_theta, 500000) << json;
    EXPECT_EQ(shape.rope_scaling, (RopeScaling{32, 1, 4, 8192})) << json;
  }
  five["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000}};
  EXPECT_EQ(shape_of(five).rope_theta, 20000);
  EXPECT_EQ(shape_of(five).rope_scaling, std::nullopt);
  four["rope_scaling"] = nullptr;
  EXPECT_EQ(shape_of(four).rope_scaling, std::nullopt);
}

TEST(ModelShapeTest, ReadsGpt2) {
  const auto shape = read_model_shape("tests/fixtures/gpt2_micro/config.json");
  EXPECT_EQ(shape, (ModelShape{.family = ModelFamily::gpt2,
                               .vocab_size = 256,
                               .dim = 64,
                               .num_layers = 2,
                               .num_heads = 4,
                               .num_kv_heads = 4,
                               .head_dim = 16,
                               .ffn_dim = 256,
                               .max_seq_len = 64,
                               .tie_embeddings = true}));
}

TEST(ModelShapeTest, RefusesWhatIsNotBuiltByName) {
  const std::string llama = "llama_micro", gpt2 = "gpt2_micro";
  EXPECT_EQ(error_with(llama, "model_type", "mistral"),
            "model_type: '\"mistral\"' is not supported; expected llama or gpt2");
  EXPECT_EQ(error_with(llama, "hidden_act", "gelu"),
            "hidden_act: '\"gelu\"' is not supported; expected silu");
  EXPECT_EQ(error_with(llama, "attention_bias", true),
            "attention_bias: 'true' is not supported; expected false");
  EXPECT_EQ(error_with(llama, "mlp_bias", true),
            "mlp_bias: 'true' is not supported; expected false");
  EXPECT_EQ(error_with(llama, "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}),
            "rope_scaling: rope_type: '\"yarn\"' is not supported; expected default or llama3");
  EXPECT_EQ(error_with(llama, "rope_scaling", {{"type", "linear"}, {"factor", 4}}),
            "rope_scaling: type: '\"linear\"' is not supported; expected default or llama3");
  EXPECT_EQ(error_with(gpt2, "activation_function", "relu"),
            "activation_function: '\"relu\"' is not supported; expected gelu_new (the tanh form)");
  EXPECT_EQ(error_with(gpt2, "scale_attn_by_inverse_layer_idx", true),
            "scale_attn_by_inverse_layer_idx: 'true' is not supported; expected false");
}

TEST(ModelShapeTest, BadFilesAreOneLineThatNamesTheKey) {
  const std::string llama = "llama_micro", gpt2 = "gpt2_micro";
  EXPECT_EQ(error_of(""), "expected JSON; it stops being JSON at byte 1");
  EXPECT_EQ(error_of("{\"model_type\": "), "expected JSON; it stops being JSON at byte 16");
  EXPECT_EQ(error_of("[1]"), "expected a JSON object with model_type, got '[1]'");
  EXPECT_EQ(error_of("{}"), "model_type: expected a value, got none");
  EXPECT_EQ(error_with(llama, "hidden_size", nullptr), "hidden_size: expected a value, got none");
  EXPECT_EQ(error_with(llama, "hidden_size", "64"),
            "hidden_size: expected a whole number >= 1, got '\"64\"'");
  EXPECT_EQ(error_with(llama, "hidden_size", 64.5),
            "hidden_size: expected a whole number >= 1, got '64.5'");
  EXPECT_EQ(error_with(llama, "hidden_size", 0),
            "hidden_size: expected a whole number >= 1, got '0'");
  EXPECT_EQ(error_with(llama, "hidden_size", UINT64_MAX),
            "hidden_size: expected a whole number >= 1, got '18446744073709551615'");
  EXPECT_EQ(error_with(llama, "hidden_size", int64_t{1} << 40),
            "hidden_size: expected a whole number in [1, 1048576], got 1099511627776");
  EXPECT_EQ(error_with(gpt2, "n_embd", INT64_MAX - 3),
            "n_embd: expected a whole number in [1, 1048576], got 9223372036854775804");
  EXPECT_EQ(error_with(llama, "num_key_value_heads", 3),
            "num_key_value_heads: expected a divisor of the 4 query heads, got 3");
  EXPECT_EQ(error_with(llama, "head_dim", 15),
            "head_dim: expected an even number for rotary positions, got 15");
  EXPECT_EQ(error_with(gpt2, "n_head", 5),
            "n_head: '5' is not supported; expected a divisor of n_embd 64");
  EXPECT_EQ(error_with(llama, "rms_norm_eps", -1), "rms_norm_eps: expected a number > 0, got '-1'");
  EXPECT_EQ(error_with(llama, "tie_word_embeddings", "yes"),
            "tie_word_embeddings: expected true or false, got '\"yes\"'");
  EXPECT_EQ(error_with(llama, "rope_scaling", 4), "rope_scaling: expected an object, got '4'");
  EXPECT_EQ(error_with(llama, "rope_scaling", {{"rope_type", "llama3"}}),
            "rope_scaling: factor: expected a value, got none");
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

}  // namespace
}  // namespace tessera::config
