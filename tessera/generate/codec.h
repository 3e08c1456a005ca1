// Text as a model's tokens, and back piece by piece.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/text/tokenizer.h"

namespace tessera::generate {

class Codec {
 public:
  /// nullptr: bytes are tokens.
  Codec(std::shared_ptr<const text::Tokenizer> tokenizer, int64_t vocab_size)
      : vocab_size_(vocab_size), tokenizer_(std::move(tokenizer)) {}

  /// At least one token: of an empty text the one that ends texts.
  std::vector<int64_t> encode(const std::string& text) const;
  /// Without what the tokenizer puts around a text.
  std::vector<int64_t> encode_plain(const std::string& text) const;
  std::vector<int64_t> end_tokens() const;  ///< the tokenizer's end of text, if it has one

  const std::shared_ptr<const text::Tokenizer>& tokenizer() const { return tokenizer_; }

 private:
  std::vector<int64_t> tokens_of(const std::string& text, const text::EncodeOptions& options) const;

  int64_t vocab_size_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
};

/// One text that grows; without a tokenizer, tokens beyond a byte are written as `<id>`.
class Decoder {
 public:
  explicit Decoder(const Codec& codec, bool skip_special_tokens = false);

  std::string push(int64_t token);  ///< what can be shown once `token` is known
  std::string finish();             ///< what waited for the rest of a character

 private:
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::optional<text::StreamDecoder> stream_;
};

}  // namespace tessera::generate
