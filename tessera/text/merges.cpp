#include "tessera/text/merges.h"

#include <bit>
#include <utility>

namespace tessera::text {

Merges::Merges(size_t expected) { grow(std::bit_ceil(expected * 2 + 16)); }

void Merges::grow(size_t slots) {
  const auto old = std::exchange(slots_, std::vector<Slot>(slots));
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(slots));
  used_ = 0;
  for (const auto& slot : old) {
    if (slot.merge.rank != Merge::kNone)
      add(static_cast<uint32_t>(slot.pair >> 32), static_cast<uint32_t>(slot.pair), slot.merge);
  }
}

void Merges::add(uint32_t left, uint32_t right, Merge merge) {
  if ((used_ + 1) * 2 > slots_.size()) grow(std::bit_ceil(slots_.size() * 2 + 16));
  const uint64_t pair = uint64_t{left} << 32 | right;
  size_t at = place_of(pair);
  while (slots_[at].merge.rank != Merge::kNone && slots_[at].pair != pair)
    at = (at + 1) & (slots_.size() - 1);
  if (slots_[at].merge.rank == Merge::kNone) ++used_;
  slots_[at] = {pair, merge};
}

}  // namespace tessera::text
