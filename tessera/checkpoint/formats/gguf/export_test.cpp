#include "tessera/checkpoint/formats/gguf/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/gguf/architecture.h"
#include "tessera/checkpoint/formats/gguf/modelfile.h"
#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using nlohmann::json;
using tessera::testing::TemporaryFolder;
using ::testing::HasSubstr;
using testing::read_all;

const fs::path kFamilies = "tests/fixtures/families";

json config_of(const fs::path& folder) { return json::parse(read_file(folder / "config.json")); }

/// Tiny models of each family, with the values of config.json that llama.cpp fixes.
std::map<std::string, json> models_to_export() {
  std::map<std::string, json> configs;
  for (const auto* name : {"llama_3", "llama_biases", "llama_tied", "llama_yarn", "olmo2", "qwen2",
                           "qwen3", "phi3_longrope"})
    configs[kFamilies / name] = config_of(kFamilies / name);
  configs["tests/fixtures/gpt2_micro"] = config_of("tests/fixtures/gpt2_micro");
  auto gemma2 = config_of(kFamilies / "gemma2"), gemma3 = config_of(kFamilies / "gemma3");
  gemma2["query_pre_attn_scalar"] = gemma3["query_pre_attn_scalar"] = gemma2["head_dim"];
  gemma3["layer_types"] = {"sliding_attention", "sliding_attention"};
  configs[kFamilies / "gemma2"] = gemma2;
  configs[kFamilies / "gemma3"] = gemma3;
  return configs;
}

TEST(GgufExportTest, ParametersComeBackAsTheyWere) {
  for (const auto& [folder, config] : models_to_export()) {
    const TemporaryFolder out;
    const auto path = out.path() / "x.gguf";
    const auto source = open_training({.source = folder, .model = config, .with_optimizer = false});
    const auto done =
        export_gguf(source.tensors, path, {.config = config, .type = GgufFileType::f32});
    EXPECT_LT(done.error, 1e-7) << folder;
    const auto back = open_training({.source = path, .model = config, .with_optimizer = false});
    ASSERT_EQ(back.tensors.tensors().size(), source.tensors.tensors().size()) << folder;
    for (const auto& [name, info] : source.tensors.tensors()) {
      ASSERT_EQ(back.tensors.info(name), info) << folder << name;
      const auto a = read_all(source.tensors, name), b = read_all(back.tensors, name);
      std::vector<float> first(a.size() / 4), second(b.size() / 4);
      std::memcpy(first.data(), a.data(), a.size()), std::memcpy(second.data(), b.data(), b.size());
      // Gemma's norms have one added there.
      for (size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(first[i], second[i], 2e-7) << name;
    }
  }
}

// Blocks of 8 bits have a scale in f16.
TEST(GgufExportTest, NumbersBeyondTheTypeAreRefused) {
  const TemporaryFolder out;
  const auto folder = out.path() / "model";
  fs::copy(kFamilies / "llama_3", folder);
  const auto file = folder / "model.safetensors";
  const auto stored = read_file(file);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, stored.data(), 8);
  const auto header = json::parse(stored.substr(8, header_bytes));
  const int64_t begin = header["model.layers.0.mlp.up_proj.weight"]["data_offsets"][0];
  const float number = 1e9F;
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(8 + static_cast<int64_t>(header_bytes) + begin)
      .write(reinterpret_cast<const char*>(&number), 4);
  stream.close();
  const auto config = config_of(folder);
  const auto source = open_training({.source = folder, .model = config, .with_optimizer = false});
  for (const auto type : {GgufFileType::f16, GgufFileType::q8_0}) {
    const auto path = out.path() / "x.gguf";
    const auto line =
        refusal([&] { export_gguf(source.tensors, path, {.config = config, .type = type}); });
    EXPECT_THAT(line, ::testing::ContainsRegex("holds 1e\\+09, which f16|this type cannot hold"));
    EXPECT_FALSE(fs::exists(path));
  }
}

TEST(GgufExportTest, RefusesWhatLlamaCppComputesOtherwise) {
  const TemporaryFolder out;
  const auto refused = [&](const std::string& family, const char* key, const json& value) {
    auto config = config_of(kFamilies / family);
    config[key] = value;
    const auto source =
        open_training({.source = kFamilies / family, .model = config, .with_optimizer = false});
    return refusal([&] { export_gguf(source.tensors, out.path() / "x.gguf", {.config = config}); });
  };
  EXPECT_THAT(refused("gemma2", "query_pre_attn_scalar", 20),
              HasSubstr("query_pre_attn_scalar: llama.cpp's gemma2 of 2 layers has 12, got 20"));
  EXPECT_THAT(refused("gemma3", "query_pre_attn_scalar", 12),
              HasSubstr("layer_types: llama.cpp's gemma3 has each sixth layer without a window"));
  EXPECT_THAT(refused("phi3", "sliding_window", 9), HasSubstr("llama.cpp's phi3 sees all keys"));
  for (const auto* family : {"qwen3", "olmo2", "gemma2", "gemma3"}) {
    EXPECT_THAT(refused(family, "attention_bias", true),
                HasSubstr(std::string("attention_bias: llama.cpp's ") + family));
  }
  EXPECT_THAT(refused("llama_yarn", "rope_scaling",
                      {{"rope_type", "yarn"}, {"factor", 4}, {"truncate", false}}),
              HasSubstr("truncate: true alone"));
  auto tied = config_of(kFamilies / "olmo2");
  tied["tie_word_embeddings"] = true;
  EXPECT_THAT(refusal([&] { llama_cpp_model(tied, "m"); }), HasSubstr("a head of its own alone"));
  EXPECT_TRUE(fs::is_empty(out.path()));
}

/// A tokenizer.json of SentencePiece's kind, as transformers writes it.
std::string pieces_json(const json& pre_tokenizer) {
  json root{{"added_tokens",
             {{{"id", 0}, {"content", "<unk>"}, {"special", true}, {"normalized", false}},
              {{"id", 6}, {"content", "<end>"}, {"special", false}, {"normalized", false}}}},
            {"normalizer", nullptr},
            {"pre_tokenizer", pre_tokenizer},
            {"model",
             {{"type", "BPE"},
              {"byte_fallback", true},
              {"unk_token", "<unk>"},
              {"vocab", {{"<unk>", 0}, {"<0x0A>", 1}, {"a", 2}, {"b", 3}, {"ab", 4}, {"aab", 5}}},
              {"merges", {"a b", "a ab"}}}}};
  return root.dump();
}

const json kMetaspace{
    {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "never"}, {"split", false}};

TEST(GgufTokenizerTest, PiecesHaveTheScoresOfTheirMerges) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", pieces_json(kMetaspace));
  const auto metadata = gguf_tokenizer(folder.path(), 8, json::parse(R"({"eos_token_id": 6})"));
  const std::map<std::string, GgufValue> keys(metadata.begin(), metadata.end());
  EXPECT_EQ(keys.at("tokenizer.ggml.model"), gguf_string("llama"));
  EXPECT_EQ(keys.at("tokenizer.ggml.tokens"),
            gguf_strings({"<unk>", "<0x0A>", "a", "b", "ab", "aab", "<end>", "[PAD7]"}));
  EXPECT_EQ(keys.at("tokenizer.ggml.token_type"), gguf_i32s({3, 6, 1, 1, 1, 1, 4, 5}));
  EXPECT_EQ(keys.at("tokenizer.ggml.scores"), gguf_f32s({-2, -2, -2, -2, 0, -1, -1000, -10000}));
  EXPECT_EQ(keys.at("tokenizer.ggml.add_space_prefix"), gguf_bool(false));
  EXPECT_EQ(keys.at("tokenizer.ggml.eos_token_id"), gguf_u32(6));
}

TEST(GgufTokenizerTest, RefusesOtherWaysToCut) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", pieces_json({{"type", "Whitespace"}}));
  EXPECT_THAT(refusal([&] { gguf_tokenizer(folder.path(), 8, {}); }),
              HasSubstr("pre_tokenizer: llama.cpp does not cut words so"));
  folder.write("tokenizer.json", pieces_json(kMetaspace));
  EXPECT_THAT(refusal([&] { gguf_tokenizer(folder.path(), 6, {}); }),
              HasSubstr("expected ids below the model's vocab_size 6"));
}

TEST(GgufTokenizerTest, ReadsSentencePiecesOwnFile) {
  const TemporaryFolder folder;
  fs::copy("tests/fixtures/tokenizers/sentencepiece_bpe/tokenizer.model", folder.path());
  const auto metadata = gguf_tokenizer(folder.path(), 8000, {});
  const std::map<std::string, GgufValue> keys(metadata.begin(), metadata.end());
  const auto& tokens = std::get<std::vector<GgufValue>>(keys.at("tokenizer.ggml.tokens").held);
  const auto& kinds = std::get<std::vector<GgufValue>>(keys.at("tokenizer.ggml.token_type").held);
  const auto& scores = std::get<std::vector<GgufValue>>(keys.at("tokenizer.ggml.scores").held);
  ASSERT_EQ(tokens.size(), 8000U);
  EXPECT_EQ(std::get<std::string>(tokens[0].held), "<unk>");
  EXPECT_EQ(std::get<int64_t>(kinds[0].held), 2);  // unknown
  EXPECT_EQ(std::get<int64_t>(kinds[1].held), 3);  // control
  EXPECT_EQ(std::get<std::string>(tokens[7999].held), "[PAD7999]");
  EXPECT_EQ(std::get<double>(scores[7999].held), -10000);
}

TEST(ModelfileTest, SaysHowAnswersAreDrawnAndEnd) {
  const TemporaryFolder folder;
  testing::MemorySource source;
  source.add_counting("x", {2});
  const auto path = folder.path() / "small.gguf";
  write_gguf(source,
             {{"tokenizer.ggml.tokens", gguf_strings({"a", "</s>", "<|im_end|>", "\""})},
              {"tokenizer.ggml.eos_token_id", gguf_u32(1)}},
             {{"x", GgmlType::f32}}, path);
  EXPECT_EQ(modelfile(path, ""),
            "# ollama create small -f small.Modelfile\nFROM ./small.gguf\nPARAMETER stop "
            "\"</s>\"\n");
  folder.write("generation_config.json",
               R"({"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1,
                   "eos_token_id": [1, 2, 3, 9]})");
  EXPECT_EQ(modelfile(path, folder.path()),
            "# ollama create small -f small.Modelfile\nFROM ./small.gguf\n"
            "PARAMETER temperature 0.6\nPARAMETER top_k 20\nPARAMETER repeat_penalty 1.1\n"
            "PARAMETER stop \"</s>\"\nPARAMETER stop \"<|im_end|>\"\n");
  folder.write("generation_config.json", R"({"temperature": 0.6, "do_sample": false})");
  EXPECT_THAT(modelfile(path, folder.path()), HasSubstr("PARAMETER temperature 0\n"));
}

}  // namespace
}  // namespace tessera::checkpoint
