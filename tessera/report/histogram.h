// How often which sizes occur, as text and as a picture.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::report {

/// Bin i counts values from first + i * width to the next bin's first.
struct Histogram {
  int64_t first = 0;  ///< a multiple of width
  int64_t width = 1;
  std::vector<int64_t> counts;  ///< from the bin of the least value to that of the largest

  int64_t begin_of(size_t bin) const { return first + static_cast<int64_t>(bin) * width; }
};

/// At most `max_bins` bins (2 or more), each 1, 2 or 5 times a power of ten wide. Values are 0 or more.
Histogram histogram_of(std::span<const int64_t> values, int64_t max_bins);

/// A line for each bin, "0 .. 99  12 ####", at most `columns` wide.
std::string histogram_text(const Histogram& histogram, int columns);

/// A standalone SVG of 900 x 480. `unit`: what the values are, "tokens".
std::string histogram_svg(const Histogram& histogram, std::string_view title,
                          std::string_view subtitle, std::string_view unit);

}  // namespace tessera::report
