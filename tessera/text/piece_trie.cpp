#include "tessera/text/piece_trie.h"

namespace tessera::text {

void PieceTrie::add(std::string_view piece, uint32_t value) {
  uint32_t node = 0;
  for (const char letter : piece) {
    const auto byte = static_cast<uint8_t>(letter);
    auto next = children_.find(node, byte);
    if (next.rank == Merge::kNone) {
      next = {0, static_cast<uint32_t>(values_.size())};
      children_.add(node, byte, next);
      values_.push_back(kNone);
    }
    node = next.id;
  }
  values_[node] = value;
}

}  // namespace tessera::text
