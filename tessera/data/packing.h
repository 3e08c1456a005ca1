// Documents of uneven length put into rows of one length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::data {

/// Documents by row.
class Packing {
 public:
  int64_t num_rows() const { return static_cast<int64_t>(ends_.size()); }
  /// Indices of the documents of a row, in its order.
  std::span<const uint32_t> row(int64_t row) const;

 private:
  friend Packing pack(std::span<const int64_t> lengths, int64_t row_length);
  friend Packing one_each(size_t num_documents);

  std::vector<uint32_t> documents_;
  std::vector<uint64_t> ends_;
};

/// Best-fit decreasing (Johnson, Near-Optimal Bin Packing Algorithms, 1973): each document, the longest first, goes
/// to the row with the least room that holds it. Lengths are 1 to row_length. A
/// function of the lengths alone. Cost: O(n log row_length).
Packing pack(std::span<const int64_t> lengths, int64_t row_length);

/// A row for each.
Packing one_each(size_t num_documents);

}  // namespace tessera::data
