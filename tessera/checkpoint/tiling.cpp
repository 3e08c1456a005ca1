#include "tessera/checkpoint/tiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <vector>

namespace tessera::checkpoint {
namespace {

/// The tensor as rows of one stride. A range is at most three of these: the rest of a row, whole
/// rows (of its stripe), the begin of a row.
struct Block {
  int64_t row, end_row, column, end_column;
};

void add_blocks(const StoredExtent& range, int64_t width, std::vector<Block>& blocks) {
  if (range.length == 0) return;
  const bool whole = range.stripe.whole();
  const int64_t run = whole ? width : range.stripe.run, left = whole ? 0 : range.stripe.offset;
  const int64_t end = range.begin + range.length;
  int64_t row = range.begin / run;
  const int64_t last = end / run, from = left + range.begin % run, to = left + end % run;
  if (row == last) return blocks.push_back({row, row + 1, from, to});
  if (from > left) {
    blocks.push_back({row, row + 1, from, left + run});
    ++row;
  }
  if (row < last) blocks.push_back({row, last, left, left + run});
  if (to > left) blocks.push_back({last, last + 1, left, to});
}

/// Goes down the rows at which blocks begin or end, with the columns that are taken there.
std::string sweep(int64_t num_rows, int64_t width, std::vector<Block> blocks) {
  std::ranges::sort(blocks, {}, [](const Block& b) { return std::tuple(b.row, b.column); });
  auto by_end = blocks;
  std::ranges::sort(by_end, {}, &Block::end_row);
  auto opening = blocks.begin(), closing = by_end.begin();
  std::map<int64_t, int64_t> taken;  // columns: begin, end
  int64_t num_taken = 0;
  for (int64_t row = 0; row < num_rows;) {
    for (; closing != by_end.end() && closing->end_row == row; ++closing) {
      taken.erase(closing->column);
      num_taken -= closing->end_column - closing->column;
    }
    for (; opening != blocks.end() && opening->row == row; ++opening) {
      const auto& [begin, end] = std::pair(opening->column, opening->end_column);
      const auto next = taken.lower_bound(begin);
      const bool meets_next = next != taken.end() && next->first < end;
      const bool meets_last = next != taken.begin() && std::prev(next)->second > begin;
      if (meets_next || meets_last) {
        return fmt::format("element {} twice", row * width + (meets_last ? begin : next->first));
      }
      taken.emplace_hint(next, begin, end);
      num_taken += end - begin;
    }
    if (num_taken != width) {
      int64_t column = 0;
      for (const auto& [begin, end] : taken) {
        if (begin != column) break;
        column = end;
      }
      return fmt::format("no element {}", row * width + column);
    }
    row = closing->end_row;  // there is one: the row is full
    if (opening != blocks.end()) row = std::min(row, opening->row);
  }
  return "";
}

}  // namespace

std::string untiled(int64_t num_elements, std::span<const StoredExtent> ranges) {
  int64_t stride = 0;
  for (const auto& range : ranges) {
    const auto& stripe = range.stripe;
    if (!stripe.fits(num_elements)) {
      return fmt::format("a stripe {}+{}/{}", stripe.offset, stripe.run, stripe.stride);
    }
    const int64_t count = stripe.taken(num_elements);
    if (range.begin > count || range.length > count - range.begin) {
      return fmt::format("{} elements from {} on, of {}", range.length, range.begin, count);
    }
    if (stripe.whole()) continue;
    if (stride != 0 && stripe.stride != stride) {
      return fmt::format("stripes of both {} and {} elements", stride, stripe.stride);
    }
    stride = stripe.stride;
  }
  if (num_elements == 0) return "";  // every range is empty
  const int64_t width = stride == 0 ? num_elements : stride;
  std::vector<Block> blocks;
  for (const auto& range : ranges) add_blocks(range, width, blocks);
  return sweep(num_elements / width, width, std::move(blocks));
}

}  // namespace tessera::checkpoint
