// Which two tokens become one, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace tessera::text {

struct Merge {
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  uint32_t rank = kNone;  ///< smaller ones first; kNone: the two are never merged
  uint32_t id = 0;        ///< what they become
};

/// A table of pairs, in one piece of memory. 16 to 32 bytes a pair.
class Merges {
 public:
  Merges() = default;
  explicit Merges(size_t expected);

  /// A pair that is there already gets the new rank.
  void add(uint32_t left, uint32_t right, Merge merge);
  Merge find(uint32_t left, uint32_t right) const {
    if (slots_.empty()) return {};
    const uint64_t pair = uint64_t{left} << 32 | right;
    for (size_t at = place_of(pair);; at = (at + 1) & (slots_.size() - 1)) {
      const auto& slot = slots_[at];
      if (slot.pair == pair) return slot.merge;
      if (slot.merge.rank == Merge::kNone) return {};
    }
  }

 private:
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    Merge merge;
  };

  size_t place_of(uint64_t pair) const {
    return static_cast<size_t>((pair * 0x9E3779B97F4A7C15U) >> shift_);
  }
  void grow(size_t slots);

  std::vector<Slot> slots_;  // a power of two
  size_t used_ = 0;
  unsigned shift_ = 64;
};

}  // namespace tessera::text
