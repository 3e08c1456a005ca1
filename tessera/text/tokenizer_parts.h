// What a tokenizer is made of, for those that read one from a file.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/text/added_tokens.h"
#include "tessera/text/decoder.h"
#include "tessera/text/model.h"
#include "tessera/text/normalizer.h"
#include "tessera/text/post_processor.h"
#include "tessera/text/pre_tokenizer.h"
#include "tessera/text/sentencepiece_text.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {

struct Tokenizer::Parts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Model model;
  AddedTokens added;
  PostProcessor post_processor;
  std::optional<uint32_t> end_of_text;  ///< as the format itself has it
  std::optional<Decoder> decoder;       ///< none: tokens with spaces between them

  /// A SentencePiece model has these two instead of normalizer and decoder.
  std::optional<SentencePieceText> sentencepiece_text;
  std::optional<SentencePieceDecoding> sentencepiece_decoding;
};

// Each reads one kind of file; the folder holds the others that belong to it.
Tokenizer load_tokenizer_json(const std::filesystem::path& path);
Tokenizer load_vocab_and_merges(const std::filesystem::path& vocab);
Tokenizer load_vocab_txt(const std::filesystem::path& path);
Tokenizer load_tiktoken(const std::filesystem::path& path);
Tokenizer load_sentencepiece(const std::filesystem::path& path);

/// `tokenizer_class`, added tokens and the like of a tokenizer_config.json beside `path`, for formats
/// that hold little more than a vocabulary.
struct ConfigBeside {
  std::filesystem::path path;
  nlohmann::json json;  ///< {} if there is none
};
ConfigBeside config_beside(const std::filesystem::path& path);
/// `eos_token` of tokenizer_config.json or special_tokens_map.json beside `path`; UserError if it is
/// no token.
std::optional<uint32_t> end_of_text_beside(const std::filesystem::path& path,
                                           const Tokenizer& tokenizer);

/// tokenizer.json from its text; `path` is for errors.
Tokenizer parse_tokenizer_json(const std::filesystem::path& path, std::string_view text);
Tokenizer parse_sentencepiece(const std::filesystem::path& path, std::string_view bytes);

}  // namespace tessera::text
