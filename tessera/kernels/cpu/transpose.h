// A square of 32-bit lanes in registers to its transpose.
// Include it only from files compiled by tessera_isa_sources (cpu/isa.cmake).
#pragma once

#include <utility>  // std::integer_sequence, and no function

#include "tessera/kernels/cpu/vec_math.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {

/// Lane i: lane i / 2 + begin of a, where i is even, of b where it is odd.
template <int begin, int... i>
TESSERA_INLINE Vec interleave(Vec a, Vec b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (i / 2 + (i % 2) * kWidth + begin)...);
}

/// kWidth x kWidth lanes in registers to their transpose: log2(kWidth) perfect shuffles of the
/// rows' concatenation.
TESSERA_INLINE void transpose(Vec (&rows)[kWidth]) {
  constexpr auto kLanes = std::make_integer_sequence<int, kWidth>();
  Vec mixed[kWidth];
#pragma GCC unroll 4
  for (int stage = 1; stage < kWidth; stage *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kWidth / 2; ++i) {
      mixed[2 * i] = interleave<0>(rows[i], rows[i + kWidth / 2], kLanes);
      mixed[2 * i + 1] = interleave<kWidth / 2>(rows[i], rows[i + kWidth / 2], kLanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) rows[i] = mixed[i];
  }
}

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
