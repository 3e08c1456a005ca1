// What all tokenizers of GGUF files have: tokens with kinds, and special ones by their role.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/formats/gguf/file.h"

namespace tessera::checkpoint {

/// llama.cpp's kinds of tokens.
enum class TokenKind : int64_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

/// One for each row of the model's table; those that the tokenizer lacks are unused.
struct GgufTokens {
  std::vector<std::string> texts;
  std::vector<int64_t> kinds;
  std::map<std::string, uint64_t> ids;

  explicit GgufTokens(int64_t vocab_size);
  /// Returns the id. UserError: none below the number of rows.
  size_t put(const std::string& text, const nlohmann::json& id, TokenKind kind,
             const std::string& where);
};

/// The files of a tokenizer's folder; {} for those that are not there.
struct TokenizerFiles {
  std::filesystem::path folder;
  nlohmann::json tokenizer, config;  ///< tokenizer.json, tokenizer_config.json
  nlohmann::json model;              ///< the model's config.json

  TokenizerFiles(std::filesystem::path from, nlohmann::json model_config);
  std::string where(const char* file) const { return (folder / file).string(); }
};

/// A value of nested objects, or null.
nlohmann::json value_at(const nlohmann::json& object, std::initializer_list<const char*> keys);

bool looks_special(const std::string& token);

/// Ids of special tokens, whether one is put before each text, the chat template.
GgufMetadata special_metadata(const TokenizerFiles& files, const GgufTokens& tokens);

/// SentencePiece's way, of tokenizer.model, or of a tokenizer.json that has bytes to fall back to.
GgufMetadata sentencepiece_metadata(const TokenizerFiles& files, int64_t vocab_size);

/// The two tokens of each of `model.merges`. UserError: the model is no BPE, a merge is of something else.
using BpeMerges = std::vector<std::pair<std::string, std::string>>;
BpeMerges bpe_merges(const TokenizerFiles& files);

}  // namespace tessera::checkpoint
