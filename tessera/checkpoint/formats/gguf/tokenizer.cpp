#include <algorithm>
#include <map>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/strict_json.h"
#include "tessera/checkpoint/formats/gguf/export.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

/// llama.cpp's kinds of tokens.
enum class TokenKind : int64_t { normal = 1, control = 3, user_defined = 4, unused = 5 };

// Expressions by which words are cut, and llama.cpp's names of them.
constexpr std::string_view kLlama3Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json read_optional(const fs::path& path) {
  return fs::exists(path) ? parse_strict_json(path, read_file(path)) : json::object();
}

/// A value of nested objects, or null.
json value_at(const json& object, std::initializer_list<const char*> keys) {
  const json* at = &object;
  for (const auto* key : keys) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &at->at(key);
  }
  return *at;
}

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

std::string merge_text(const json& merge, const std::string& where) {
  if (merge.is_string()) return merge.get<std::string>();
  const bool pair =
      merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
  if (!pair) user_error("{}: model.merges: expected two tokens, got {}", where, merge.dump());
  return merge[0].get<std::string>() + " " + merge[1].get<std::string>();
}

bool looks_special(const std::string& token) {
  return token == "<pad>" || token == "<mask>" || token == "<2mass>" || token == "[@BOS@]" ||
         (token.starts_with("<|") && token.ends_with("|>")) ||
         (token.starts_with("<｜") && token.ends_with("｜>")) ||
         (token.starts_with("<unused") && token.ends_with(">"));
}

struct Tokens {
  std::vector<std::string> texts;
  std::vector<int64_t> kinds;
  std::map<std::string, uint64_t> ids;
};

Tokens read_tokens(const json& root, int64_t vocab_size, const std::string& where) {
  Tokens tokens;
  for (int64_t i = 0; i < vocab_size; ++i) {
    tokens.texts.push_back(fmt::format("[PAD{}]", i));
    tokens.kinds.push_back(static_cast<int64_t>(TokenKind::unused));
  }
  const auto put = [&](const std::string& text, const json& id, TokenKind kind) {
    if (!id.is_number_unsigned() || id >= vocab_size) {
      user_error("{}: expected ids below the model's vocab_size {}, got {} of '{}'", where,
                 vocab_size, id.dump(), text);
    }
    const auto at = id.get<size_t>();
    tokens.texts[at] = text;
    tokens.kinds[at] = static_cast<int64_t>(kind);
    tokens.ids[text] = at;
  };
  const auto vocabulary = value_at(root, {"model", "vocab"});
  for (const auto& [text, id] : vocabulary.items()) put(text, id, TokenKind::normal);
  for (const auto& added : value_at(root, {"added_tokens"})) {
    const auto content = value_at(added, {"content"});
    if (!content.is_string()) user_error("{}: added_tokens: expected a content", where);
    const auto text = content.get<std::string>();
    const bool control = value_at(added, {"special"}) == true || looks_special(text);
    put(text, value_at(added, {"id"}), control ? TokenKind::control : TokenKind::user_defined);
  }
  return tokens;
}

/// The id of "bos", "eos" or "pad": what the tokenizer's configuration names, else the model's.
std::optional<uint64_t> special_id(const json& config, const json& model, const std::string& which,
                                   const Tokens& tokens) {
  auto value = value_at(config, {(which + "_token").c_str()});
  if (value.is_object()) value = value_at(value, {"content"});
  if (value.is_string()) {
    const auto found = tokens.ids.find(value.get<std::string>());
    if (found != tokens.ids.end()) return found->second;
  }
  const auto id = value_at(model, {(which + "_token_id").c_str()});
  if (!id.is_number_unsigned() || id >= tokens.texts.size()) return std::nullopt;
  return id.get<uint64_t>();
}

/// Does the tokenizer put `id` before each text? None: it does not say.
std::optional<bool> puts_first(const json& root, const json& config, std::optional<uint64_t> id,
                               const Tokens& tokens) {
  std::optional<bool> result;
  auto processor = value_at(root, {"post_processor"});
  auto processors = value_at(processor, {"processors"});
  if (processors.is_null()) processors = json::array({processor});
  for (const auto& each : processors) {
    if (value_at(each, {"type"}) == "ByteLevel" && !result) result = false;
    if (value_at(each, {"type"}) != "TemplateProcessing") continue;
    const auto single = value_at(each, {"single"});
    if (!single.is_array() || single.size() < 2) continue;
    const auto first = value_at(single[0], {"SpecialToken", "id"});
    if (first.is_string()) {
      const auto found = tokens.ids.find(first.get<std::string>());
      result = id && found != tokens.ids.end() && found->second == *id;
    }
  }
  const auto said = value_at(config, {"add_bos_token"});
  return said.is_boolean() ? said.get<bool>() : result;
}

}  // namespace

GgufMetadata gguf_tokenizer(const fs::path& folder, int64_t vocab_size, const json& model) {
  const auto path = folder / "tokenizer.json";
  const auto where = path.string();
  if (folder.empty()) return {{"tokenizer.ggml.model", gguf_string("none")}};
  if (!fs::exists(path)) {
    user_error("{}: no tokenizer.json, from which tokenizers of GGUF files are made here",
               folder.string());
  }
  const auto root = parse_strict_json(path, read_file(path));
  const auto config = read_optional(folder / "tokenizer_config.json");
  const auto type = value_at(root, {"model", "type"});
  if (type != "BPE" || value_at(root, {"model", "byte_fallback"}) == true) {
    user_error("{}: model: expected BPE of bytes, the kind that is written to GGUF, got {}", where,
               type.dump());
  }
  const auto cut = pre_tokenizer_name(value_at(root, {"pre_tokenizer"}), where);
  const auto tokens = read_tokens(root, vocab_size, where);
  std::vector<std::string> merges;
  for (const auto& merge : value_at(root, {"model", "merges"}))
    merges.push_back(merge_text(merge, where));
  GgufMetadata result{{"tokenizer.ggml.model", gguf_string("gpt2")},
                      {"tokenizer.ggml.pre", gguf_string(cut)},
                      {"tokenizer.ggml.tokens", gguf_strings(tokens.texts)},
                      {"tokenizer.ggml.token_type", gguf_i32s(tokens.kinds)},
                      {"tokenizer.ggml.merges", gguf_strings(merges)}};
  const auto bos = special_id(config, model, "bos", tokens);
  if (bos) result.emplace_back("tokenizer.ggml.bos_token_id", gguf_u32(*bos));
  if (const auto id = special_id(config, model, "eos", tokens))
    result.emplace_back("tokenizer.ggml.eos_token_id", gguf_u32(*id));
  if (const auto id = special_id(config, model, "pad", tokens))
    result.emplace_back("tokenizer.ggml.padding_token_id", gguf_u32(*id));
  if (const auto first = puts_first(root, config, bos, tokens))
    result.emplace_back("tokenizer.ggml.add_bos_token", gguf_bool(*first));
  const auto template_file = folder / "chat_template.jinja";
  const auto inside = value_at(config, {"chat_template"});
  if (fs::exists(template_file)) {
    result.emplace_back("tokenizer.chat_template", gguf_string(read_file(template_file)));
  } else if (inside.is_string()) {
    result.emplace_back("tokenizer.chat_template", gguf_string(inside.get<std::string>()));
  }
  return result;
}

}  // namespace tessera::checkpoint
