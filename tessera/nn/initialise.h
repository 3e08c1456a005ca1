// Initial weights as a pure function of name and position, so that they never depend on the number
// of ranks.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string_view>

namespace tessera::nn {

/// Fills elements [begin, begin + out.numel()) of the parameter `name` (row-major) into contiguous
/// fp32 `out`: uniform with standard deviation `std`, of PortableNumbers (base/portable_numbers.h). Any
/// slice can be made alone, in any order, on any rank, to the bit.
void fill_portable(torch::Tensor out, std::string_view name, int64_t seed, double std,
                   int64_t begin = 0);

/// The same from a normal distribution (Box and Muller, 1958, of the 64 bits of each element).
void fill_portable_normal(torch::Tensor out, std::string_view name, int64_t seed, double std,
                          int64_t begin = 0);

}  // namespace tessera::nn
