#include "tessera/text/sentencepiece_text.h"

#include <algorithm>

#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// What the text at `at` becomes, and how many of its bytes.
CharacterMap::Found next_part(const SentencePieceText& step, std::string_view text) {
  if (const auto whole = step.whole_symbols.longest(text); whole.bytes > 0)
    return {whole.bytes, text.substr(0, whole.bytes)};
  if (step.map) {
    if (const auto found = step.map->longest(text); found.bytes > 0) return found;
  }
  const size_t bytes = character_at(text, 0).bytes;
  return {bytes, text.substr(0, bytes)};
}

class Writer {
 public:
  Writer(const SentencePieceText& step, TrackedText& made)
      : made_(made), space_(step.escape_blanks ? kSpaceMark : " ") {}

  void put(std::string_view text, Range origin) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(' ', at), text.size());
      made_.put(text.substr(at, end - at), origin);
      if (end < text.size()) made_.put(space_, origin);
      at = end + 1;
    }
  }
  bool ends_in_space() const { return made_.text.ends_with(space_); }
  void drop_space() {
    made_.text.resize(made_.text.size() - space_.size());
    if (made_.tracked) made_.origin.resize(made_.text.size());
  }

 private:
  TrackedText& made_;
  std::string_view space_;
};

}  // namespace

void apply(const SentencePieceText& step, TrackedText& text, bool continues) {
  TrackedText made;
  made.tracked = text.tracked;
  Writer writer(step, made);
  const std::string_view all = text.text;
  size_t at = 0;
  while (step.remove_extra_blanks && at < all.size()) {
    const auto part = next_part(step, all.substr(at));
    if (part.replacement != " ") break;
    at += part.bytes;
  }
  if (at == all.size()) {
    text = std::move(made);
    return;
  }
  const Range begin = {text.origin_of(at).begin, text.origin_of(at).begin};
  if (step.dummy_prefix && !step.suffix && !continues) writer.put(" ", begin);
  bool last_is_space = step.remove_extra_blanks;
  while (at < all.size()) {
    auto part = next_part(step, all.substr(at));
    auto replacement = part.replacement;
    while (last_is_space && replacement.starts_with(' ')) replacement.remove_prefix(1);
    if (!replacement.empty()) {
      Range origin = text.origin_of(at);
      if (text.tracked) origin.end = text.origin[at + part.bytes - 1].end;
      writer.put(replacement, origin);
      last_is_space = step.remove_extra_blanks && replacement.ends_with(' ');
    }
    at += part.bytes;
  }
  while (step.remove_extra_blanks && writer.ends_in_space()) writer.drop_space();
  if (step.dummy_prefix && step.suffix) writer.put(" ", {});
  text = std::move(made);
}

}  // namespace tessera::text
