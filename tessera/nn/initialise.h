// Initial weights as a pure function of name and position, so that they never depend on the number
// of ranks.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string_view>

namespace tessera::nn {

/// FNV-1a (Fowler, Noll and Vo) of a name, 64 bits: what tells one parameter's or layer's numbers
/// from another's.
uint64_t name_key(std::string_view name);

/// Fills elements [begin, begin + out.numel()) of the parameter `name` (row-major) into contiguous
/// fp32 `out`: uniform with standard deviation `std`, element i from splitmix64 (Steele et al.,
/// OOPSLA 2014) at position i + 1 of the stream keyed by FNV-1a(name) and `seed`. Any slice can be
/// made alone, in any order, on any rank, to the bit.
void fill_portable(torch::Tensor out, std::string_view name, int64_t seed, double std,
                   int64_t begin = 0);

/// The same from a normal distribution (Box and Muller, 1958, of the 64 bits of each element).
void fill_portable_normal(torch::Tensor out, std::string_view name, int64_t seed, double std,
                          int64_t begin = 0);

}  // namespace tessera::nn
