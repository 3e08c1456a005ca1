#include "tessera/text/encode.h"

#include <algorithm>

#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

/// Cuts `text` into words and added tokens.
void cut_into_words(const Tokenizer::Parts& parts, const EncodeOptions& options, CutText& text) {
  parts.added.cut(text, false, options);
  if (parts.sentencepiece_text)
    text.rewrite([&](TrackedText& part, bool first) {
      apply(*parts.sentencepiece_text, part, first && options.continues_text);
    });
  for (const auto& step : parts.normalizer) {
    const auto& pieces = text.pieces();
    const bool changes_none = std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      return piece.token != kNoToken || leaves_alone(step, text.of(piece));
    });
    if (changes_none) continue;
    text.rewrite([&](TrackedText& part, bool first) {
      const bool prefixes = std::holds_alternative<PrependText>(step);
      if (!(prefixes && first && options.continues_text)) apply(step, part);
    });
  }
  parts.added.cut(text, true, options);
  for (const auto& step : parts.pre_tokenizer) apply(step, text, options.continues_text);
}

bool is_blank_of_token(char32_t letter) { return letter == 0x120 || is_white_space(letter); }

/// Leaves the blanks at the ends of a token's text out of its offsets.
void trim(Offsets& offsets, std::string_view token, bool first, bool prefix_space) {
  uint32_t leading = 0, trailing = 0;
  for (size_t at = 0; at < token.size(); ++leading) {
    const auto letter = character_at(token, at);
    if (!is_blank_of_token(letter.code)) break;
    at += letter.bytes;
  }
  for (size_t end = token.size(); end > 0; ++trailing) {
    size_t at = end - 1;
    while ((static_cast<uint8_t>(token[at]) & 0xC0) == 0x80) --at;
    if (!is_blank_of_token(character_at(token, at).code)) break;
    end = at;
  }
  if (leading == 1 && prefix_space && (first || offsets.begin == 0)) leading = 0;
  offsets.begin = std::min(offsets.begin + leading, offsets.end);
  if (trailing > 0 && offsets.end >= trailing)
    offsets.end = std::max(offsets.end - trailing, offsets.begin);
}

/// How many characters begin before each byte.
std::vector<uint32_t> count_characters(std::string_view text) {
  std::vector<uint32_t> before(text.size() + 1);
  uint32_t count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    before[i] = count;
    // Within a character none more has begun than at its begin, as its end is told by the next.
    if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) ++count;
  }
  before[text.size()] = count;
  return before;
}

}  // namespace

Encoding encode_text(const Tokenizer::Parts& parts, std::string_view bytes, uint32_t type_id,
                     const EncodeOptions& options) {
  std::string valid;
  if (!is_utf8(bytes)) bytes = valid = replace_invalid_utf8(bytes);
  CutText text(bytes, true);
  cut_into_words(parts, options, text);
  const auto before = count_characters(bytes);
  Encoding encoding;
  std::vector<ModelToken> tokens;
  const auto put = [&](uint32_t id, Range range, std::string_view token) {
    Offsets offsets;
    if (range.begin < range.end) {
      const auto origin = text.origin_of(range);
      offsets = {before[origin.begin], before[origin.end]};
    } else {
      const auto origin = text.origin_of({range.begin, range.begin + 1});
      offsets = {before[origin.begin], before[origin.begin]};
    }
    for (const auto& each : parts.post_processor.trims)
      trim(offsets, token, encoding.ids.empty(), each.prefix_space);
    encoding.ids.push_back(id);
    encoding.offsets.push_back(offsets);
  };
  const auto& vocabulary = vocabulary_of(parts.model);
  for (const auto& piece : text.pieces()) {
    const auto word = text.of(piece);
    if (piece.token != kNoToken) {
      put(static_cast<uint32_t>(piece.token), piece.range, word);
      continue;
    }
    tokens.clear();
    tokenize_word(parts.model, word, tokens);
    for (const auto& token : tokens) {
      const auto* name = vocabulary.token_of(token.id);
      put(token.id, {piece.range.begin + token.range.begin, piece.range.begin + token.range.end},
          name == nullptr ? "" : *name);
    }
  }
  encoding.type_ids.assign(encoding.ids.size(), type_id);
  return encoding;
}

Encoding put_together(const Tokenizer::Parts& parts, std::vector<Encoding> texts,
                      const EncodeOptions& options) {
  const auto& around = texts.size() == 1 ? parts.post_processor.single : parts.post_processor.pair;
  Encoding all;
  const auto append = [&](const Encoding& text, std::optional<uint32_t> type_id) {
    all.ids.insert(all.ids.end(), text.ids.begin(), text.ids.end());
    all.offsets.insert(all.offsets.end(), text.offsets.begin(), text.offsets.end());
    if (type_id) {
      all.type_ids.resize(all.ids.size(), *type_id);
    } else {
      all.type_ids.insert(all.type_ids.end(), text.type_ids.begin(), text.type_ids.end());
    }
  };
  if (!around) {
    for (const auto& text : texts) append(text, std::nullopt);
    return all;
  }
  for (const auto& part : *around) {
    if (part.kind != TemplatePart::Kind::special) {
      append(texts[part.kind == TemplatePart::Kind::first ? 0 : 1], part.type_id);
    } else if (options.add_special_tokens) {
      all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
      all.offsets.resize(all.ids.size());
      all.type_ids.resize(all.ids.size(), part.type_id);
    }
  }
  return all;
}

struct Encoder::State {
  const Tokenizer::Parts* parts = nullptr;
  WordCache words;
};

Encoder::Encoder(const Tokenizer& tokenizer) : state_(std::make_unique<State>()) {
  state_->parts = &tokenizer.parts();
}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

void Encoder::append(std::string_view bytes, std::vector<uint32_t>& ids,
                     const EncodeOptions& options) {
  const auto& parts = *state_->parts;
  std::string valid;
  if (!is_utf8(bytes)) bytes = valid = replace_invalid_utf8(bytes);
  CutText text(bytes, false);
  cut_into_words(parts, options, text);
  const auto put_text = [&] {
    for (const auto& piece : text.pieces()) {
      if (piece.token != kNoToken) {
        ids.push_back(static_cast<uint32_t>(piece.token));
      } else {
        state_->words.append(parts.model, text.of(piece), ids);
      }
    }
  };
  if (!parts.post_processor.single) return put_text();
  for (const auto& part : *parts.post_processor.single) {
    if (part.kind != TemplatePart::Kind::special) {
      put_text();
    } else if (options.add_special_tokens) {
      ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    }
  }
}

}  // namespace tessera::text
