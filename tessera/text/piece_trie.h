// Which of many strings a text begins with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/text/merges.h"

namespace tessera::text {

/// A tree of bytes.
class PieceTrie {
 public:
  void add(std::string_view piece, uint32_t value);  ///< a piece again gets the new value
  bool empty() const { return values_.size() == 1; }

  /// Calls `found(bytes, value)` for each piece that `text` begins with, the shortest first.
  template <typename Found>
  void prefixes(std::string_view text, const Found& found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto next = children_.find(node, static_cast<uint8_t>(text[i]));
      if (next.rank == Merge::kNone) return;
      node = next.id;
      if (values_[node] != kNone) found(i + 1, static_cast<uint32_t>(values_[node]));
    }
  }

  struct Found {
    size_t bytes = 0;  ///< 0: none
    uint32_t value = 0;
  };
  Found longest(std::string_view text) const {
    Found result;
    prefixes(text, [&](size_t bytes, uint32_t value) { result = {bytes, value}; });
    return result;
  }

 private:
  static constexpr int64_t kNone = -1;
  Merges children_;  // (node, byte) to node
  std::vector<int64_t> values_ = {kNone};
};

}  // namespace tessera::text
