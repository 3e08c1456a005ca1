#include "tessera/chat/text.h"

#include <algorithm>

namespace tessera::chat {

void Text::append(std::string_view bytes, SourceId source) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().source == source) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), source});
  }
}

void Text::append(const Text& other, size_t begin, size_t end) {
  end = std::min(end, other.size());
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                              [](size_t at, const Run& candidate) { return at < candidate.end; });
  for (; begin < end; ++run) {
    const size_t until = std::min(end, run->end);
    append(other.view().substr(begin, until - begin), run->source);
    begin = until;
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text part;
  part.append(*this, begin, end);
  return part;
}

SourceId Text::source_at(size_t at, SourceId otherwise) const {
  const auto run =
      std::upper_bound(runs_.begin(), runs_.end(), at,
                       [](size_t place, const Run& candidate) { return place < candidate.end; });
  return run == runs_.end() ? otherwise : run->source;
}

}  // namespace tessera::chat
