#include "tessera/models/hf_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/models/bert/shape.h"
#include "tessera/models/spec.h"

namespace tessera::config {
namespace {

using namespace models;

using Json = nlohmann::json;

/// The config.json of a folder of tests/fixtures.
Json fixture(const std::string& name) {
  return Json::parse(read_file("tests/fixtures/" + name + "/config.json"));
}

/// A config.json that is gone with the test.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : folder_(::testing::TempDir() + "config_test_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
    write_file(path(), text);
  }
  ~ConfigFile() { std::filesystem::remove_all(folder_); }
  std::filesystem::path path() const { return folder_ / "config.json"; }

 private:
  std::filesystem::path folder_;
};

ModelShape shape_of(const Json& json) { return read_model_shape(ConfigFile(json.dump()).path()); }

/// What `read` says of a file with this text, after the file name.
template <typename Read>
std::string error_of(const std::string& text, const Read& read) {
  const ConfigFile file(text);
  const auto line = tessera::testing::message_of([&] { read(file.path()); });
  const auto prefix = file.path().string() + ": ";
  return line.starts_with(prefix) ? line.substr(prefix.size()) : "not of the file: " + line;
}

std::string error_of(const std::string& text) {
  return error_of(text, [](const auto& path) { read_model_shape(path); });
}

std::string error_with(const std::string& name, const std::string& key, const Json& value) {
  auto json = fixture(name);
  json[key] = value;
  return error_of(json.dump());
}

TEST(HfConfig, ReadsLlama) {
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

TEST(HfConfig, ReadsRotaryScalingOfBothGenerations) {
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
    EXPECT_EQ(shape.rope_scaling, RopeScaling{.factor = 32}) << json;
  }
  five["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000}};
  EXPECT_EQ(shape_of(five).rope_theta, 20000);
  EXPECT_EQ(shape_of(five).rope_scaling, std::nullopt);
  four["rope_scaling"] = nullptr;
  EXPECT_EQ(shape_of(four).rope_scaling, std::nullopt);
}

TEST(HfConfig, ReadsGpt2) {
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

TEST(HfConfig, RefusesWhatIsNotBuiltByName) {
  const std::string llama = "llama_micro", gpt2 = "gpt2_micro";
  EXPECT_EQ(error_with(llama, "model_type", "mamba"),
            "model_type: '\"mamba\"' is not supported; expected " + either_of(model_types()));
  EXPECT_EQ(error_with(llama, "hidden_act", "gelu"),
            "hidden_act: '\"gelu\"' is not supported; expected silu");
  const std::string types = " is not supported; expected default, linear, dynamic, yarn or llama3";
  EXPECT_EQ(error_with(llama, "rope_scaling", {{"rope_type", "longrope"}, {"factor", 4}}),
            "rope_scaling: rope_type: '\"longrope\"'" + types);
  EXPECT_EQ(error_with(llama, "rope_scaling", {{"type", "su"}, {"factor", 4}}),
            "rope_scaling: type: '\"su\"'" + types);
  EXPECT_EQ(error_with(gpt2, "activation_function", "relu"),
            "activation_function: '\"relu\"' is not supported; expected gelu_new (the tanh form)");
  EXPECT_EQ(error_with(gpt2, "scale_attn_by_inverse_layer_idx", true),
            "scale_attn_by_inverse_layer_idx: 'true' is not supported; expected false");
}

TEST(HfConfig, BadFilesAreOneLineThatNamesTheKey) {
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
  EXPECT_EQ(error_with("families/llama_dynamic", "head_dim", 2),
            "head_dim: expected more than 2 for dynamic rotary scaling, got 2");
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

TEST(HfConfig, RefusesMixturesThatCannotBe) {
  const std::string v3 = "families/deepseek_v3";
  EXPECT_EQ(error_with(v3, "n_group", 3), "n_group: expected a divisor of the 8 experts, got 3");
  EXPECT_EQ(error_with(v3, "topk_group", 5), "topk_group: expected at most the 4 groups, got 5");
  EXPECT_EQ(
      error_with(v3, "topk_group", 1),
      "num_experts_per_tok: expected at most the 2 experts of the topk_group 1 groups, got 3");
  EXPECT_EQ(error_with(v3, "num_experts_per_tok", 9),
            "num_experts_per_tok: expected a whole number in [1, 8], the number of experts, got 9");
  EXPECT_EQ(error_with(v3, "v_head_dim", 13),
            "v_head_dim: expected at most the 12 columns of a query's head, got 13");
  EXPECT_EQ(error_with(v3, "qk_rope_head_dim", 5),
            "qk_rope_head_dim: '5' is not supported; expected an even number");
  EXPECT_EQ(error_with(v3, "first_k_dense_replace", 2),
            "num_hidden_layers: expected more than the 2 that have no experts, got 2");
  EXPECT_EQ(error_with(v3, "scoring_func", "softmax"),
            "scoring_func: '\"softmax\"' is not supported; expected sigmoid");
  EXPECT_EQ(error_with(v3, "num_key_value_heads", 2),
            "num_key_value_heads: '2' is not supported; expected 4, one for each head");
}

// What transformers makes of each file is compared in tests/parity/families_parity_test.cpp.
TEST(HfConfig, ReadsTheFamiliesThatTransformersWrote) {
  const auto shape_of_family = [](const std::string& name) {
    return read_model_shape("tests/fixtures/families/" + name + "/config.json");
  };
  const auto qwen3 = shape_of_family("qwen3");
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 12);
  EXPECT_FALSE(qwen3.qkv_bias || qwen3.out_bias || qwen3.mlp_bias);
  const auto qwen2 = shape_of_family("qwen2");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.out_bias);
  EXPECT_EQ(qwen2.sliding_window, 0);
  const auto windowed = shape_of_family("qwen2_window");
  EXPECT_EQ(windowed.sliding_window, 5);
  EXPECT_EQ(windowed.num_full_layers, 1);
  EXPECT_EQ(shape_of_family("mistral").sliding_window, 7);
  const auto biased = shape_of_family("llama_biases");
  EXPECT_TRUE(biased.qkv_bias && biased.out_bias && biased.mlp_bias);
  EXPECT_EQ(
      shape_of_family("llama_dynamic").rope_scaling,
      (RopeScaling{.type = RopeScalingType::dynamic, .factor = 3, .original_max_seq_len = 16}));
  const auto yarn = *shape_of_family("llama_yarn").rope_scaling;
  EXPECT_EQ(yarn.original_max_seq_len, 16);
  EXPECT_NEAR(yarn.attention_factor, 0.1 * std::log(4) + 1, 1e-15);
}

TEST(HfConfig, AnAbsentKeyMeansWhatItMeansInTransformers) {
  Json json{{"model_type", "mistral"},      {"vocab_size", 100},        {"hidden_size", 64},
            {"num_hidden_layers", 30},      {"num_attention_heads", 8}, {"intermediate_size", 128},
            {"max_position_embeddings", 50}};
  EXPECT_EQ(shape_of(json).num_kv_heads, 8);
  EXPECT_EQ(shape_of(json).sliding_window, 4096);
  json["sliding_window"] = nullptr;
  EXPECT_EQ(shape_of(json).sliding_window, 0);
  json["model_type"] = "llama";
  json["sliding_window"] = 5;  // Llama does not look at it
  EXPECT_EQ(shape_of(json).sliding_window, 0);
  json["model_type"] = "qwen3";
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(shape_of(json).head_dim, 128);
  EXPECT_EQ(shape_of(json).num_kv_heads, 8);
  EXPECT_EQ(shape_of(json).sliding_window, 0);
  json["use_sliding_window"] = true;
  EXPECT_EQ(shape_of(json).sliding_window, 5);
  EXPECT_EQ(shape_of(json).num_full_layers, 28);
  json["max_window_layers"] = 0;
  EXPECT_EQ(shape_of(json).num_full_layers, 0);
  json["max_window_layers"] = 30;
  EXPECT_EQ(shape_of(json).sliding_window, 0);
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2}};
  EXPECT_EQ(shape_of(json).rope_scaling->original_max_seq_len, 50);
  json["num_key_value_heads"] = 2;
  json["model_type"] = "qwen2";
  EXPECT_EQ(shape_of(json).head_dim, 8);
  json.erase("num_key_value_heads");
  EXPECT_EQ(error_of(json.dump()),
            "num_key_value_heads: expected a divisor of the 8 query heads, got 32");
}

TEST(HfConfig, GptOssHasItsPublishedPositionsUnlessItSaysOthers) {
  auto json = fixture("families/gpt_oss");
  json.erase("rope_parameters");
  const RopeScaling published{.type = RopeScalingType::yarn,
                              .factor = 32,
                              .original_max_seq_len = 4096,
                              .truncate = false,
                              .attention_factor = 0.1 * std::log(32) + 1};
  EXPECT_EQ(shape_of(json).rope_scaling, published);
  json["rope_scaling"] = nullptr;
  json["rope_theta"] = 5000;
  EXPECT_EQ(shape_of(json).rope_scaling, published);
  EXPECT_EQ(shape_of(json).rope_theta, 5000);
  json["rope_scaling"] = {{"rope_type", "default"}};
  const auto plain = shape_of(json);
  EXPECT_EQ(plain.rope_scaling, std::nullopt);
  EXPECT_EQ(shape_of(to_hf_config(plain)), plain);
}

TEST(HfConfig, LayerTypesSayWhichLayersHaveAWindow) {
  auto json = fixture("families/qwen2_window");
  json["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(shape_of(json).num_full_layers, 0);
  json["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(shape_of(json).sliding_window, 0);
  json["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(error_of(json.dump()),
            "layer_types: '[\"sliding_attention\",\"full_attention\"]' is not supported; expected "
            "layers of full_attention before those of sliding_attention");
  json["layer_types"] = {"full_attention"};
  EXPECT_EQ(error_of(json.dump()),
            "layer_types: expected full_attention or sliding_attention for each of 2 layers, got "
            "'[\"full_attention\"]'");
}

/// Every shape there is: presets, and what the fixtures hold.
std::vector<ModelShape> all_shapes() {
  std::vector<ModelShape> shapes;
  for (const auto& preset : model_preset_names()) shapes.push_back(model_preset(preset));
  for (const auto& folder : std::filesystem::directory_iterator("tests/fixtures/families")) {
    if (folder.is_directory()) shapes.push_back(read_model_shape(folder.path() / "config.json"));
  }
  auto odd = model_preset("gpt2");
  odd.tie_embeddings = false, odd.ffn_dim = 100;
  shapes.push_back(odd);
  auto biased = read_model_shape("tests/fixtures/families/qwen3/config.json");
  biased.qkv_bias = biased.out_bias = true, biased.sliding_window = 9;
  shapes.push_back(biased);
  return shapes;
}

// It changes nothing but training, which asks for it (Check.TheNoiseOfAConfigJsonIsAskedFor).
TEST(HfConfig, TheNoiseOfARouterIsReadAndWritten) {
  auto json = fixture("mixtral_micro");
  json["router_jitter_noise"] = 0.01;
  const auto shape = shape_of(json);
  EXPECT_EQ(shape.experts.jitter_noise, 0.01);
  EXPECT_EQ(to_hf_config(shape)["router_jitter_noise"], 0.01);
  EXPECT_EQ(error_with("mixtral_micro", "router_jitter_noise", 1.5),
            "router_jitter_noise: expected a number of at least 0 and below 1, got '1.5'");
  EXPECT_EQ(error_with("mixtral_micro", "router_jitter_noise", "some"),
            "router_jitter_noise: expected a number of at least 0 and below 1, got '\"some\"'");
}

TEST(HfConfig, WhatIsWrittenIsReadBackTheSame) {
  const auto shapes = all_shapes();
  EXPECT_GE(shapes.size(), 21u);
  for (const auto& shape : shapes) {
    const auto json = to_hf_config(shape);
    EXPECT_EQ(shape_of(json), shape) << json.dump(1);
  }
}

TEST(HfConfig, NamesTheArchitectureOfEveryFamily) {
  const std::map<std::string, std::string> architectures = {{"llama_3", "LlamaForCausalLM"},
                                                            {"mistral", "MistralForCausalLM"},
                                                            {"qwen2", "Qwen2ForCausalLM"},
                                                            {"qwen2_window", "Qwen2ForCausalLM"},
                                                            {"qwen3", "Qwen3ForCausalLM"}};
  for (const auto& [name, architecture] : architectures) {
    const auto published = fixture("families/" + name);
    const auto json = to_hf_config(shape_of(published));
    EXPECT_EQ(json["architectures"].get<Json>(), Json::array({architecture}));
    EXPECT_EQ(json["architectures"].get<Json>(), published["architectures"]);
    EXPECT_EQ(json["model_type"].get<Json>(), published["model_type"]);
  }
  EXPECT_EQ(to_hf_config(model_preset("gpt2"))["architectures"].get<Json>(),
            Json::array({"GPT2LMHeadModel"}));
}

std::string bert_error(const std::string& key, const Json& value) {
  auto json = fixture("bert_micro");
  json[key] = value;
  return error_of(json.dump(), [](const auto& path) { read_bert_shape(path); });
}

TEST(BertConfig, ReadsWhatTransformersWrote) {
  const auto shape = read_bert_shape("tests/fixtures/bert_cls_micro/config.json");
  EXPECT_EQ(shape, (BertShape{.head = BertHead::sequence_classification,
                              .vocab_size = 256,
                              .dim = 64,
                              .num_layers = 2,
                              .num_heads = 4,
                              .ffn_dim = 128,
                              .max_seq_len = 64,
                              .num_labels = 3}));
  EXPECT_EQ(read_bert_shape("tests/fixtures/bert_micro/config.json").head, BertHead::masked_lm);
  EXPECT_EQ(bert_error("hidden_act", "relu"),
            "hidden_act: '\"relu\"' is not supported; expected gelu (the exact form)");
  EXPECT_EQ(bert_error("architectures", {"BertModel"}),
            "architectures: '[\"BertModel\"]' is not supported; expected BertForMaskedLM or "
            "BertForSequenceClassification");
  EXPECT_EQ(bert_error("num_attention_heads", 5),
            "num_attention_heads: '5' is not supported; expected a divisor of hidden_size 64");
  EXPECT_EQ(bert_error("is_decoder", true), "is_decoder: 'true' is not supported; expected false");
}

}  // namespace
}  // namespace tessera::config
