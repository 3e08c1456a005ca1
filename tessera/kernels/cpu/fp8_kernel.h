// The vector code that rounds to 8-bit floats behind tables of function pointers: raw pointers, no
// threads of its own. Indices [2] are dtypes: 0 float, 1 bfloat16.
#pragma once

#include <stdint.h>

namespace tessera::kernels {

/// An 8-bit floating-point type: bits of its mantissa, and what follows from its range.
struct Fp8Layout {
  int mantissa_bits;  ///< 3: E4M3 (no infinity, one NaN each sign); 2: E5M2
  float largest;      ///< finite number
  float smallest_normal;
  float subnormal_magic;   ///< 2^23 times the smallest subnormal: adding it rounds to one
  uint32_t overflow_bits;  ///< of the first float that has no code in between, as IEEE rounds
  uint8_t overflow_code;   ///< what larger floats become without saturation
};
inline constexpr Fp8Layout kE4M3Layout{3, 448.0f, 0x1p-6f, 0x1p14f, 0x43f00000u, 0x7f};
inline constexpr Fp8Layout kE5M2Layout{2, 57344.0f, 0x1p-14f, 0x1p7f, 0x47800000u, 0x7c};

/// Rounds a row of `count` numbers: out[i] = fp8(x[i] * scale, saturated) * inverse. With `scales`
/// and `inverses` they are x[i]'s own instead.
struct Fp8RoundArgs {
  const void* x;
  void* out;
  int64_t count;
  float scale, inverse;
  const float *scales, *inverses;
  bool e5m2;
  bool counts;  ///< what became zero
};

struct Fp8Table {
  /// The largest magnitude of `count` numbers; infinity if one is infinite, NaN is passed over.
  float (*amax[2])(const void* x, int64_t count);
  /// amax[i] = max(amax[i], |x[i]|).
  void (*amax_of_columns[2])(const void* x, int64_t count, float* amax);
  /// How many of `count` numbers are further from zero than `bound`; NaN is not.
  int64_t (*num_above[2])(const void* x, int64_t count, float bound);
  /// By dtype of [x][out]. Gives how many numbers became zero, which were not; without `counts` 0.
  int64_t (*round[2][2])(const Fp8RoundArgs& args);
  /// Codes of x * scale, by dtype of x.
  void (*encode[2])(const void* x, int64_t count, float scale, bool e5m2, bool saturate,
                    uint8_t* codes);
  /// Numbers of codes times `factor`, by dtype of `out`.
  void (*decode[2])(const uint8_t* codes, int64_t count, float factor, bool e5m2, void* out);
};

namespace generic {
extern const Fp8Table fp8_table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Fp8Table fp8_table;
}
namespace avx512 {
extern const Fp8Table fp8_table;
}
namespace avx512_bf16 {
extern const Fp8Table fp8_table;
}
#endif

}  // namespace tessera::kernels
