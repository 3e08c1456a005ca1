#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/gguf/export.h"
#include "tessera/checkpoint/formats/gguf/tokens.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

// Expressions by which words are cut, and llama.cpp's names of them.
constexpr std::string_view kLlama3Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string pre_tokenizer_name(const json& cuts, const std::string& where) {
  auto steps = value_at(cuts, {"pretokenizers"});
  if (steps.is_null()) steps = json::array({cuts});
  const auto type = [&](size_t i) { return value_at(steps[i], {"type"}); };
  const bool bytes_last = !steps.empty() && type(steps.size() - 1) == "ByteLevel" &&
                          value_at(steps.back(), {"add_prefix_space"}) != true;
  const bool own_words = bytes_last && value_at(steps.back(), {"use_regex"}) != false;
  if (steps.size() == 1 && own_words) return "gpt-2";
  if (steps.size() == 2 && own_words && type(0) == "Digits" &&
      value_at(steps[0], {"individual_digits"}) == true) {
    return "smollm";
  }
  if (steps.size() == 2 && bytes_last && !own_words && type(0) == "Split") {
    const auto words = value_at(steps[0], {"pattern", "Regex"});
    if (words == kLlama3Words) return "llama-bpe";
    if (words == kQwen2Words) return "qwen2";
  }
  user_error("{}: pre_tokenizer: llama.cpp knows no tokenizer that cuts words so: {}", where,
             cuts.dump().substr(0, 200));
}

GgufTokens read_tokens(const json& root, int64_t vocab_size, const std::string& where) {
  GgufTokens tokens(vocab_size);
  const auto vocabulary = value_at(root, {"model", "vocab"});
  for (const auto& [text, id] : vocabulary.items()) tokens.put(text, id, TokenKind::normal, where);
  for (const auto& added : value_at(root, {"added_tokens"})) {
    const auto content = value_at(added, {"content"});
    if (!content.is_string()) user_error("{}: added_tokens: expected a content", where);
    const auto text = content.get<std::string>();
    const bool control = value_at(added, {"special"}) == true || looks_special(text);
    tokens.put(text, value_at(added, {"id"}),
               control ? TokenKind::control : TokenKind::user_defined, where);
  }
  return tokens;
}

GgufMetadata byte_level_metadata(const TokenizerFiles& files, int64_t vocab_size) {
  const auto where = files.where("tokenizer.json");
  const auto& root = files.tokenizer;
  const auto pairs = bpe_merges(files);
  const auto cut = pre_tokenizer_name(value_at(root, {"pre_tokenizer"}), where);
  const auto tokens = read_tokens(root, vocab_size, where);
  std::vector<std::string> merges;
  for (const auto& [first, second] : pairs) merges.push_back(first + " " + second);
  GgufMetadata result{{"tokenizer.ggml.model", gguf_string("gpt2")},
                      {"tokenizer.ggml.pre", gguf_string(cut)},
                      {"tokenizer.ggml.tokens", gguf_strings(tokens.texts)},
                      {"tokenizer.ggml.token_type", gguf_i32s(tokens.kinds)},
                      {"tokenizer.ggml.merges", gguf_strings(merges)}};
  const auto special = special_metadata(files, tokens);
  result.insert(result.end(), special.begin(), special.end());
  return result;
}

}  // namespace

GgufMetadata gguf_tokenizer(const fs::path& folder, int64_t vocab_size, const json& model) {
  if (folder.empty()) return {{"tokenizer.ggml.model", gguf_string("none")}};
  const TokenizerFiles files(folder, model);
  const bool falls_back = value_at(files.tokenizer, {"model", "byte_fallback"}) == true;
  const bool has_pieces = fs::exists(folder / "tokenizer.model");
  if (falls_back || (has_pieces && files.tokenizer.empty()))
    return sentencepiece_metadata(files, vocab_size);
  if (files.tokenizer.empty()) {
    user_error(
        "{}: no tokenizer.json or tokenizer.model, from which tokenizers of GGUF files are "
        "made here",
        folder.string());
  }
  return byte_level_metadata(files, vocab_size);
}

}  // namespace tessera::checkpoint
