#include "tessera/checkpoint/formats/gguf/tokens.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/strict_json.h"
#include "tessera/checkpoint/formats/gguf/export.h"
#include "tessera/hub/file_names.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

json read_optional(const fs::path& path) {
  return fs::exists(path) ? parse_strict_json(path, read_file(path)) : json::object();
}

/// The id of "bos", "eos" or "pad": what the tokenizer's configuration names, else the model's.
std::optional<uint64_t> special_id(const TokenizerFiles& files, const std::string& which,
                                   const GgufTokens& tokens) {
  auto value = value_at(files.config, {(which + "_token").c_str()});
  if (value.is_object()) value = value_at(value, {"content"});
  if (value.is_string()) {
    const auto found = tokens.ids.find(value.get<std::string>());
    if (found != tokens.ids.end()) return found->second;
  }
  const auto id = value_at(files.model, {(which + "_token_id").c_str()});
  if (!id.is_number_unsigned() || id >= tokens.texts.size()) return std::nullopt;
  return id.get<uint64_t>();
}

/// Does the tokenizer put `id` before each text? None: it does not say.
std::optional<bool> puts_first(const TokenizerFiles& files, std::optional<uint64_t> id,
                               const GgufTokens& tokens) {
  std::optional<bool> result;
  auto processor = value_at(files.tokenizer, {"post_processor"});
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
  const auto said = value_at(files.config, {"add_bos_token"});
  return said.is_boolean() ? said.get<bool>() : result;
}

}  // namespace

/// A value of nested objects, or null.
json value_at(const json& object, std::initializer_list<const char*> keys) {
  const json* at = &object;
  for (const auto* key : keys) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &at->at(key);
  }
  return *at;
}

bool looks_special(const std::string& token) {
  return token == "<pad>" || token == "<mask>" || token == "<2mass>" || token == "[@BOS@]" ||
         (token.starts_with("<|") && token.ends_with("|>")) ||
         (token.starts_with("<｜") && token.ends_with("｜>")) ||
         (token.starts_with("<unused") && token.ends_with(">"));
}

GgufTokens::GgufTokens(int64_t vocab_size) {
  for (int64_t i = 0; i < vocab_size; ++i) {
    texts.push_back(fmt::format("[PAD{}]", i));
    kinds.push_back(static_cast<int64_t>(TokenKind::unused));
  }
}

size_t GgufTokens::put(const std::string& text, const json& id, TokenKind kind,
                       const std::string& where) {
  if (!id.is_number_unsigned() || id >= texts.size()) {
    user_error("{}: expected ids below the model's vocab_size {}, got {} of '{}'", where,
               texts.size(), id.dump(), text);
  }
  const auto at = id.get<size_t>();
  texts[at] = text;
  kinds[at] = static_cast<int64_t>(kind);
  ids[text] = at;
  return at;
}

TokenizerFiles::TokenizerFiles(fs::path from, json model_config)
    : folder(std::move(from)),
      tokenizer(read_optional(folder / "tokenizer.json")),
      config(read_optional(folder / "tokenizer_config.json")),
      model(std::move(model_config)) {}

GgufMetadata special_metadata(const TokenizerFiles& files, const GgufTokens& tokens) {
  GgufMetadata result;
  const auto bos = special_id(files, "bos", tokens);
  const auto add = [&](const std::string& which, const char* key) {
    if (const auto id = special_id(files, which, tokens)) result.emplace_back(key, gguf_u32(*id));
  };
  add("bos", "tokenizer.ggml.bos_token_id");
  add("eos", "tokenizer.ggml.eos_token_id");
  add("unk", "tokenizer.ggml.unknown_token_id");
  add("pad", "tokenizer.ggml.padding_token_id");
  if (const auto first = puts_first(files, bos, tokens))
    result.emplace_back("tokenizer.ggml.add_bos_token", gguf_bool(*first));
  const auto template_file = files.folder / hub::kChatTemplateFile;
  const auto inside = value_at(files.config, {"chat_template"});
  if (fs::exists(template_file)) {
    result.emplace_back(kGgufChatTemplate, gguf_string(read_file(template_file)));
  } else if (inside.is_string()) {
    result.emplace_back(kGgufChatTemplate, gguf_string(inside.get<std::string>()));
  }
  return result;
}

BpeMerges bpe_merges(const TokenizerFiles& files) {
  const auto where = files.where("tokenizer.json");
  const auto type = value_at(files.tokenizer, {"model", "type"});
  if (type != "BPE") {
    user_error("{}: model: expected BPE, the kind that is written to GGUF, got {}", where,
               type.dump());
  }
  BpeMerges merges;
  for (const auto& merge : value_at(files.tokenizer, {"model", "merges"})) {
    std::string first, second;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      first = merge[0], second = merge[1];
    } else if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const auto blank = text.find(' ');
      if (blank != std::string::npos)
        first = text.substr(0, blank), second = text.substr(blank + 1);
    }
    if (first.empty() && second.empty()) {
      user_error("{}: model.merges: expected two tokens, got {}", where, merge.dump());
    }
    merges.emplace_back(std::move(first), std::move(second));
  }
  return merges;
}

}  // namespace tessera::checkpoint
