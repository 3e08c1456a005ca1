#include "tessera/text/character_map.h"

#include <utf8proc.h>

#include <cstring>

#include "tessera/base/error.h"
#include "tessera/text/unicode.h"

namespace tessera::text {

CharacterMap::CharacterMap(const std::string& where, std::string_view bytes) {
  uint32_t trie_bytes = 0;
  if (bytes.size() >= 4) std::memcpy(&trie_bytes, bytes.data(), 4);
  if (bytes.size() < 4 || trie_bytes % 4 != 0 || trie_bytes < 4 || trie_bytes > bytes.size() - 4) {
    user_error("{}: expected a compiled map of characters, got {} bytes that are none", where,
               bytes.size());
  }
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), bytes.data() + 4, trie_bytes);
  texts_ = bytes.substr(4 + trie_bytes);
  if (!is_utf8(texts_)) user_error("{}: a replacement in it is no UTF-8", where);
}

CharacterMap::Found CharacterMap::shortest(std::string_view text) const {
  return find(text, false);
}
CharacterMap::Found CharacterMap::longest(std::string_view text) const { return find(text, true); }

// A unit has its label in bits 0 to 7 and 31, whether a value hangs below it in bit 8, and how far
// its children are in bits 10 to 30, times 256 if bit 9 is set. A value has bit 31 set.
CharacterMap::Found CharacterMap::find(std::string_view text, bool longest) const {
  Found found;
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); };
  size_t at = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    at ^= byte;
    if (byte == 0 || at >= units_.size()) break;
    const uint32_t unit = units_[at];
    if ((unit & 0x800000FFU) != byte) break;
    at ^= offset(unit);
    if ((unit & 0x100) == 0 || at >= units_.size()) continue;
    const size_t begin = units_[at] & 0x7FFFFFFFU;
    // A place within a character is none that the file can mean.
    if (begin >= texts_.size() || (static_cast<uint8_t>(texts_[begin]) & 0xC0) == 0x80) break;
    found = {i + 1, std::string_view(texts_.c_str() + begin)};
    if (!longest) break;
  }
  return found;
}

namespace {

/// `part` of the source became `text`: character by character, then what is more stands for the last.
void put_replacement(TrackedText& changed, const TrackedText& source, Range part,
                     std::string_view text) {
  size_t from = part.begin;
  Range origin = source.origin_of(from);
  bool first = true;
  for (size_t at = 0; at < text.size();) {
    const auto character = character_at(text, at);
    at += character.bytes;
    if (!first && from < part.end) from += character_at(source.text, from).bytes;
    first = false;
    if (from < part.end) origin = source.origin_of(from);
    changed.put(character.code, origin);
  }
}

size_t end_of_cluster(std::string_view text, size_t begin) {
  utf8proc_int32_t state = 0;
  auto last = character_at(text, begin);
  size_t at = begin + last.bytes;
  while (at < text.size()) {
    const auto next = character_at(text, at);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state)) {
      break;
    }
    at += next.bytes;
    last = next;
  }
  return at;
}

}  // namespace

void apply_by_clusters(const CharacterMap& map, TrackedText& text) {
  TrackedText changed;
  changed.tracked = text.tracked;
  const std::string_view all = text.text;
  const auto put = [&](size_t begin, size_t end, bool whole) {
    const auto part = all.substr(begin, end - begin);
    const auto found = map.shortest(part);
    const Range range{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
    if (found.bytes > 0) {
      put_replacement(changed, text, range, found.replacement);
    } else if (!whole) {
      put_replacement(changed, text, range, part);
    }
    return found.bytes > 0;
  };
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = end_of_cluster(all, begin);
    if (end - begin >= 6 || !put(begin, end, true)) {
      for (size_t at = begin; at < end;) {
        const size_t next = at + character_at(all, at).bytes;
        put(at, next, false);
        at = next;
      }
    }
    begin = end;
  }
  text = std::move(changed);
}

}  // namespace tessera::text
