// What is left of a tensor that is cut along one dimension.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

namespace tessera {

/// The elements of a tensor of any shape, row-major, that are kept: [offset, offset + run) of each
/// `stride` elements. A tensor [A, B, C] of which [:, first : first + n, :] is taken is
/// {first C, n C, B C}. The default is the whole tensor.
struct Stripe {
  int64_t offset = 0, run = 0, stride = 0;

  bool whole() const { return run == stride; }

  /// Is this a stripe of a tensor of `num_elements`? All below expects that.
  bool fits(int64_t num_elements) const {
    return offset >= 0 && run >= 0 && run <= stride && offset <= stride - run &&
           (stride == 0 || num_elements % stride == 0);
  }

  /// How many of the tensor's `num_elements` the stripe takes.
  int64_t taken(int64_t num_elements) const {
    return whole() ? num_elements : num_elements / stride * run;
  }

  /// How many of the elements taken lie before a position in the tensor.
  int64_t taken_before(int64_t position) const {
    if (whole()) return position;
    return position / stride * run + std::clamp<int64_t>(position % stride - offset, 0, run);
  }

  /// Where the k-th element taken lies in the tensor.
  int64_t position(int64_t k) const { return whole() ? k : k / run * stride + offset + k % run; }

  /// How many of the elements taken lie without a gap from the k-th on.
  int64_t stretch(int64_t k) const {
    return whole() ? std::numeric_limits<int64_t>::max() - k : run - k % run;
  }

  /// The same of the blocks of `block` elements of a tensor of `num_elements`, where the elements
  /// taken, counted in blocks, are whole ones of them; none: it cuts one.
  std::optional<Stripe> of_blocks(int64_t block, int64_t num_elements) const {
    if (whole()) return Stripe{};
    const auto blocks = [&](int64_t elements) { return (elements + block - 1) / block; };
    const bool one_run = stride == num_elements, to_the_end = one_run && offset + run == stride;
    if (offset % block != 0 || (run % block != 0 && !to_the_end)) return std::nullopt;
    if (stride % block != 0 && !one_run) return std::nullopt;
    return Stripe{offset / block, blocks(run), blocks(stride)};
  }

  /// visit(position, k, n) for elements [begin, begin + length) of those taken, as few times as
  /// there are stretches without a gap: elements k .. k + n lie at position .. in the tensor.
  template <typename Visit>
  void for_each_stretch(int64_t begin, int64_t length, const Visit& visit) const {
    for (int64_t k = begin; k < begin + length;) {
      const int64_t n = std::min(begin + length - k, stretch(k));
      visit(position(k), k, n);
      k += n;
    }
  }

  bool operator==(const Stripe&) const = default;
};

}  // namespace tessera
