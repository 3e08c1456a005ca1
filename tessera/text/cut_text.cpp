#include "tessera/text/cut_text.h"

#include <limits>

#include "tessera/base/error.h"
#include "tessera/text/unicode.h"

namespace tessera::text {

void TrackedText::put(std::string_view more, Range from) {
  text += more;
  if (tracked) origin.resize(text.size(), from);
}

void TrackedText::put(char32_t code, Range from) {
  append_utf8(text, code);
  if (tracked) origin.resize(text.size(), from);
}

void TrackedText::clear() {
  text.clear();
  origin.clear();
}

CutText::CutText(std::string_view text, bool tracked) : original_(text) {
  now_.tracked = tracked;
  if (!text.empty()) pieces_.push_back({range_of(0, text.size())});
  if (!tracked) return;
  now_.origin.reserve(text.size());
  for (uint32_t at = 0; at < text.size();) {
    const auto bytes = character_at(text, at).bytes;
    now_.origin.resize(at + bytes, {at, at + bytes});
    at += bytes;
  }
}

Range CutText::origin_of(Range range) const {
  return {now_.origin[range.begin].begin, now_.origin[range.end - 1].end};
}

Range CutText::range_of(size_t begin, size_t end) {
  if (end > std::numeric_limits<uint32_t>::max())
    user_error("a text of {} bytes: expected at most 4 GiB; cut it", end);
  return {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
}

void CutText::copy(Range range, TrackedText& part) const {
  part.text = text().substr(range.begin, range.end - range.begin);
  if (tracked())
    part.origin.assign(now_.origin.begin() + range.begin, now_.origin.begin() + range.end);
}

}  // namespace tessera::text
