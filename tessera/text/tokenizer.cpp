#include "tessera/text/tokenizer.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/text/encode.h"
#include "tessera/text/unicode.h"

namespace tessera::text {

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts)
    : parts_(std::move(parts)), end_of_text_(parts_->end_of_text) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<Encoding> texts;
  texts.push_back(encode_text(*parts_, text, 0, options));
  return put_together(*parts_, std::move(texts), options);
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                const EncodeOptions& options) const {
  std::vector<Encoding> texts;
  texts.push_back(encode_text(*parts_, first, 0, options));
  texts.push_back(encode_text(*parts_, second, 1, options));
  return put_together(*parts_, std::move(texts), options);
}

std::optional<uint32_t> Tokenizer::id_of(std::string_view token) const {
  if (const auto* added = parts_->added.token_named(token)) return added->id;
  return vocabulary_of(parts_->model).id_of(token);
}

std::optional<std::string> Tokenizer::token_of(uint32_t id) const {
  if (const auto* added = parts_->added.token_of(id)) return added->text;
  const auto* token = vocabulary_of(parts_->model).token_of(id);
  return token == nullptr ? std::nullopt : std::optional(*token);
}

bool Tokenizer::is_special(uint32_t id) const {
  const auto* added = parts_->added.token_of(id);
  if (added != nullptr) return added->special;
  const auto* token = vocabulary_of(parts_->model).token_of(id);
  return token != nullptr && parts_->added.is_special(*token);
}

size_t Tokenizer::num_ids() const {
  size_t end = vocabulary_of(parts_->model).end();
  for (const auto& token : parts_->added.all()) end = std::max(end, size_t{token.id} + 1);
  return end;
}

namespace {

std::string decode_sentencepiece(const Tokenizer& tokenizer, std::span<const uint32_t> ids) {
  const auto& parts = tokenizer.parts();
  const auto& how = *parts.sentencepiece_decoding;
  const auto unknown = std::visit(
      [&](const auto& model) -> std::optional<uint32_t> {
        if constexpr (std::is_same_v<std::decay_t<decltype(model)>, Unigram>) return model.unknown;
        if constexpr (std::is_same_v<std::decay_t<decltype(model)>, Bpe>)
          return model.vocabulary.id_of(model.unknown);
        return std::nullopt;
      },
      parts.model);
  std::string text, bytes;
  bool prefix_is_gone = false;
  const auto flush = [&] {
    for (size_t at = 0; at < bytes.size();) {  // byte by byte where they are no characters
      size_t length = 1;
      while (length <= 4 && !is_utf8(bytes.substr(at, length))) ++length;
      const bool whole = length <= 4 && at + length <= bytes.size();
      text += whole ? bytes.substr(at, length) : "\xEF\xBF\xBD";
      at += whole ? length : 1;
    }
    bytes.clear();
  };
  for (const uint32_t id : ids) {
    const auto token = tokenizer.token_of(id);
    if (!token) continue;
    if (const int byte = byte_of_token(*token); byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    flush();
    if (parts.added.token_of(id) != nullptr) continue;  // a control token has no text
    if (id == unknown) {
      text += how.unknown;
      continue;
    }
    std::string_view piece = *token;
    constexpr std::string_view kMark = "\xE2\x96\x81";
    if (text.empty() && !prefix_is_gone && (how.consumes_prefix || how.consumes_blanks) &&
        piece.starts_with(kMark)) {
      piece.remove_prefix(kMark.size());
      prefix_is_gone = !how.consumes_blanks;
    }
    TrackedText part;
    part.text = piece;
    ReplaceText spaces;
    spaces.literal = kMark;
    spaces.content = " ";
    replace_in(part, spaces);
    text += part.text;
  }
  flush();
  return text;
}

}  // namespace

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special_tokens) const {
  if (parts_->sentencepiece_decoding) return decode_sentencepiece(*this, ids);
  std::vector<std::string> tokens;
  for (const uint32_t id : ids) {
    if (skip_special_tokens && is_special(id)) continue;
    if (auto token = token_of(id)) tokens.push_back(std::move(*token));
  }
  std::string text;
  if (parts_->decoder) {
    for (const auto& step : *parts_->decoder) apply(step, tokens);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!parts_->decoder && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

namespace {

/// What `text` has behind `shown` bytes. Tokens of single bytes can turn characters that were shown
/// into U+FFFD, so that these bytes end within one.
std::string behind(const std::string& text, size_t shown) {
  shown = std::min(shown, text.size());
  while (shown < text.size() && (static_cast<uint8_t>(text[shown]) & 0xC0) == 0x80) ++shown;
  return text.substr(shown);
}

}  // namespace

std::string StreamDecoder::push(uint32_t id) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  ids_.push_back(id);
  const auto text = tokenizer_->decode(ids_, skip_special_tokens_);
  if (text.size() <= shown_.size() || text.ends_with(kReplacement)) return "";
  auto more = behind(text, shown_.size());
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(shown_ids_));
  shown_ = tokenizer_->decode(ids_, skip_special_tokens_);
  shown_ids_ = ids_.size();
  return more;
}

std::string StreamDecoder::finish() {
  const auto text = tokenizer_->decode(ids_, skip_special_tokens_);
  auto more = behind(text, shown_.size());
  ids_.clear();
  shown_ids_ = 0;
  shown_.clear();
  return more;
}

}  // namespace tessera::text
