#include "tessera/generate/codec.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::generate {

std::vector<int64_t> Codec::tokens_of(const std::string& text,
                                      const text::EncodeOptions& options) const {
  std::vector<int64_t> tokens;
  if (tokenizer_) {
    const auto ids = tokenizer_->encode(text, options).ids;
    tokens.assign(ids.begin(), ids.end());
  } else {
    for (const unsigned char byte : text)
      tokens.push_back(std::min<int64_t>(byte, vocab_size_ - 1));
  }
  return tokens;
}

std::vector<int64_t> Codec::encode(const std::string& text) const {
  auto tokens = tokens_of(text, {});
  if (tokens.empty()) tokens.push_back(tokenizer_ ? tokenizer_->end_of_text().value_or(0) : '\n');
  return tokens;
}

std::vector<int64_t> Codec::encode_plain(const std::string& text) const {
  return tokens_of(text, {.add_special_tokens = false});
}

std::vector<int64_t> Codec::end_tokens() const {
  const auto end = tokenizer_ ? tokenizer_->end_of_text() : std::nullopt;
  return end ? std::vector<int64_t>{*end} : std::vector<int64_t>{};
}

Decoder::Decoder(const Codec& codec, bool skip_special_tokens) : tokenizer_(codec.tokenizer()) {
  if (tokenizer_) stream_.emplace(*tokenizer_, skip_special_tokens);
}

std::string Decoder::push(int64_t token) {
  if (stream_) return stream_->push(static_cast<uint32_t>(token));
  return token < 256 ? std::string(1, static_cast<char>(token)) : fmt::format("<{}>", token);
}

std::string Decoder::finish() { return stream_ ? stream_->finish() : ""; }

}  // namespace tessera::generate
