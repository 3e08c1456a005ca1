#include <algorithm>

#include "tessera/text/character_sets.h"
#include "tessera/text/tokenizer.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

constexpr size_t kWindow = 256;    // bytes to both sides that tell whether a cut changes tokens
constexpr size_t kMostBlanks = 8;  // between two words, so that the window holds words, too
constexpr size_t kLineEndsWithin = size_t{64} << 10;  // where they are looked for before others
constexpr int kMostTries = 32;

bool is_blank(char byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }
bool is_within(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

/// Whether the bytes at `at` are a character that a word may have, no mark nor part of a character.
bool is_of_word(std::string_view text, size_t at) {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) return byte > ' ' && byte < 0x7F;
  const auto rest = text.substr(at, 4);
  for (size_t bytes = 2; bytes <= rest.size(); ++bytes) {
    if (!is_utf8(rest.substr(0, bytes))) continue;
    const auto code = character_at(rest.substr(0, bytes), 0).code;
    return !is_white_space(code) && !is_control(code) && !is_mark(code);
  }
  return false;
}

size_t begin_of_character(std::string_view text, size_t at) {
  for (int i = 0; i < 3 && at > 0 && is_within(text[at]); ++i) --at;
  return at;
}

/// Tries places by encoding what stands around them.
class Trial {
 public:
  Trial(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options)
      : tokenizer_(tokenizer), text_(text), options_(options) {
    options_.add_special_tokens = false;
  }

  bool passes(const TextCut& cut) const {
    size_t begin = cut.at - std::min(cut.at, kWindow);
    size_t end = std::min(text_.size(), cut.at + kWindow);
    while (begin < cut.at && is_within(text_[begin])) ++begin;
    while (end > cut.at && end < text_.size() && is_within(text_[end])) --end;
    auto both = ids(begin, cut.at, true);
    const auto right = ids(cut.at, end, cut.continues);
    both.insert(both.end(), right.begin(), right.end());
    return both == ids(begin, end, true);
  }

 private:
  std::vector<uint32_t> ids(size_t begin, size_t end, bool continues) const {
    auto options = options_;
    options.continues_text = continues;
    return tokenizer_.encode(text_.substr(begin, end - begin), options).ids;
  }

  const Tokenizer& tokenizer_;
  std::string_view text_;
  EncodeOptions options_;
};

}  // namespace

std::optional<TextCut> place_to_cut(const Tokenizer& tokenizer, std::string_view text, size_t from,
                                    EncodeOptions options) {
  const Trial trial(tokenizer, text, options);
  for (const bool at_line_end : {true, false}) {
    const size_t last = at_line_end ? std::min(text.size(), from + kLineEndsWithin) : text.size();
    int tries = 0;
    for (size_t begin = std::max<size_t>(from, 1); begin < last && tries < kMostTries; ++begin) {
      if (!is_blank(text[begin]) || is_blank(text[begin - 1])) continue;
      size_t end = begin;
      while (end < text.size() && is_blank(text[end])) ++end;
      const auto blanks = text.substr(begin, end - begin);
      const bool fits = end < text.size() && blanks.size() <= kMostBlanks &&
                        (!at_line_end || blanks.find('\n') != blanks.npos) &&
                        is_of_word(text, begin_of_character(text, begin - 1)) &&
                        is_of_word(text, end);
      if (fits) {
        ++tries;
        for (const TextCut cut : {TextCut{end, true}, TextCut{end - 1, true}, TextCut{begin, true},
                                  TextCut{end, false}})
          if (trial.passes(cut)) return cut;
      }
      begin = end;
    }
  }
  return std::nullopt;
}

}  // namespace tessera::text
