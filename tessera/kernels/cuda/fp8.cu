// Numbers of 8 bits and their transpose, of a matrix that is read once.
#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

constexpr int kEach = kVector;  // rows and columns of a thread
constexpr int kDown = 8, kAcross = 16, kTileRows = kDown * kEach, kTileColumns = kAcross * kEach;
constexpr int kTileThreads = kDown * kAcross;

struct alignas(8) EightCodes {
  uint8_t v[8];
};

// --- Scales: kernels/fp8.cpp has the same for the host.

__device__ inline float power_below(float x) {
  return bits_as<float>(bits_as<uint32_t>(x) & 0x7f800000u);
}

__device__ inline float quotient(float largest, float amax) {
  constexpr double kSmallestAmax = 1e-12;
  const double divisor = amax < kSmallestAmax ? kSmallestAmax : static_cast<double>(amax);
  return static_cast<float>(static_cast<double>(largest) / divisor);
}

/// 2^-e with e the exponent of the power of two above.
__device__ inline float e8m0_scale(float x) {
  const uint32_t bits = bits_as<uint32_t>(x), mantissa = bits & 0x7fffffu;
  uint32_t exponent = bits >> 23;
  const bool within_subnormals = exponent == 0 && mantissa <= 0x400000u;
  if (exponent < 0xfeu) {
    exponent += mantissa > 0 && !within_subnormals ? 1 : 0;
  } else {
    exponent = 0xfeu;
  }
  const uint32_t biased = 254u - exponent;
  return bits_as<float>(biased > 0 ? biased << 23 : 0x400000u);
}

__device__ inline float scale_by(Fp8ScaleRule rule, float largest, float amax) {
  switch (rule) {
    case Fp8ScaleRule::exact:
      return quotient(largest, amax);
    case Fp8ScaleRule::power_of_two:
      return power_below(quotient(largest, amax));
    case Fp8ScaleRule::block: {
      constexpr float kLargestFloat = 0x1.fffffep127f;
      if (amax == 0.0f || amax > kLargestFloat) return 1;
      const float scale = largest / amax;
      return power_below(scale < kLargestFloat ? scale : kLargestFloat);
    }
    case Fp8ScaleRule::e8m0:
      return e8m0_scale(amax * (1 / largest));
  }
  return 0;
}

// --- Codes.

/// What a rectangle's numbers are multiplied by; who has its first number tells of it.
__device__ inline float scale_at(const Fp8CastArgs& args, bool given, float own, float largest,
                                 int64_t row, int64_t column) {
  const int64_t across = args.columns / args.wide;
  const int64_t index = row / args.high * across + column / args.wide;
  const float amax = args.amax[index];
  const float scale = given ? own : scale_by(args.rule, largest, amax);
  if (row % args.high == 0 && column % args.wide == 0) {
    const bool finite = amax - amax == 0.0f;
    args.scales[index] = scale;
    args.factors[index] = finite ? 1 / scale : bits_as<float>(0x7fc00000u);
  }
  return scale;
}

/// Codes of eight numbers, saturated.
template <bool kE5M2>
__device__ EightCodes codes_of(const Floats<kEach>& numbers) {
  EightCodes codes;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#pragma unroll
  for (int k = 0; k < kEach; k += 2) {
    uint16_t two;
    if constexpr (kE5M2) {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(numbers[k + 1]), "f"(numbers[k]));
    } else {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(numbers[k + 1]), "f"(numbers[k]));
    }
    codes.v[k] = static_cast<uint8_t>(two), codes.v[k + 1] = static_cast<uint8_t>(two >> 8);
  }
#else
  constexpr float kLargest = kE5M2 ? 57344.0f : 448.0f;
  for (int k = 0; k < kEach; ++k) {
    const float x = numbers[k];
    codes.v[k] = code_of<kE5M2>(x > kLargest ? kLargest : x < -kLargest ? -kLargest : x);
  }
#endif
  return codes;
}

/// A block has a tile of the matrix, a thread 8 x 8 numbers of it. `own`: the scale, if it was `given`. The transpose goes
/// through shared memory by eight codes of a column, in an order that meets different banks.
template <typename T, bool kE5M2, int N>
__global__ void __launch_bounds__(kTileThreads)
    fp8_cast_kernel(Fp8CastArgs args, bool given, float own) {
  __shared__ EightCodes tile[kTileColumns][kDown];
  constexpr float kLargest = kE5M2 ? 57344.0f : 448.0f;
  const int64_t tiles = (args.columns + kTileColumns - 1) / kTileColumns;
  const int64_t first_row = blockIdx.x / tiles * kTileRows;
  const int64_t first_column = blockIdx.x % tiles * kTileColumns;
  const int thread = static_cast<int>(threadIdx.x);
  const int down = thread / kAcross, across = thread % kAcross;
  const int64_t row = first_row + down * kEach, column = first_column + across * kEach;
  // Sizes are multiples of 16: a thread has all of its numbers or none.
  const bool inside = row < args.rows && column < args.columns;
  unsigned underflows = 0, overflows = 0;
  EightCodes codes[kEach] = {};
  if (inside) {
    Packed<kEach, T> numbers[kEach];
    const T* from = static_cast<const T*>(args.x) + row * args.columns + column;
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      if constexpr (N == 1) {
        for (int k = 0; k < kEach; ++k) numbers[r].set(k, from[r * args.columns + k]);
      } else {
        numbers[r].fetch(from + r * args.columns);
      }
    }
    Floats<kEach> scales;
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      if (r == 0 || (row + r) % args.high == 0) {  // other rows have those of the one above
        for (int k = 0; k < kEach; ++k) {
          const bool has_own = k == 0 || args.wide == 1;
          scales[k] =
              has_own ? scale_at(args, given, own, kLargest, row + r, column + k) : scales[0];
        }
      }
      Floats<kEach> scaled;
      for (int k = 0; k < kEach; ++k) scaled[k] = numbers[r][k] * scales[k];
      codes[r] = codes_of<kE5M2>(scaled);
      if (args.lost != nullptr) {
        for (int k = 0; k < kEach; ++k) {
          const float x = numbers[r][k];
          underflows += x != 0 && (codes[r].v[k] & 0x7fu) == 0 ? 1 : 0;
          overflows += given && fabsf(x) > kLargest / own ? 1 : 0;
        }
      }
      if (args.plain != nullptr) {
        *reinterpret_cast<EightCodes*>(args.plain + (row + r) * args.columns + column) = codes[r];
      }
    }
  }
  if (args.lost != nullptr) {  // of integers, whose order does not matter
    underflows = sum_over_block(underflows), overflows = sum_over_block(overflows);
    if (thread == 0 && underflows > 0) atomicAdd(args.lost, underflows);
    if (thread == 0 && overflows > 0) atomicAdd(args.lost + 1, overflows);
  }
  if (args.transposed == nullptr) return;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    EightCodes of_column;
#pragma unroll
    for (int r = 0; r < kEach; ++r) of_column.v[r] = codes[r].v[k];
    tile[across * kEach + k][(down + across) % kDown] = of_column;
  }
  __syncthreads();
  for (int i = thread; i < kTileColumns * kDown; i += kTileThreads) {
    const int c = i / kDown, d = i % kDown;
    const int64_t to_row = first_row + d * kEach, to_column = first_column + c;
    if (to_row >= args.rows || to_column >= args.columns) continue;
    *reinterpret_cast<EightCodes*>(args.transposed + to_column * args.rows + to_row) =
        tile[c][(d + c / kEach) % kDown];
  }
}

template <typename T, bool kE5M2>
void cast_as(const Fp8CastArgs& args, Stream stream) {
  const int64_t blocks = ceil_div(args.rows, kTileRows) * ceil_div(args.columns, kTileColumns);
  const bool given = args.scale != nullptr;
  with_width(aligned(args.x), [&](auto width) {
    launch(fp8_cast_kernel<T, kE5M2, decltype(width)::value>, blocks, kTileThreads, stream, args,
           given, given ? *args.scale : 0.0f);
  });
}

template <typename T>
void cast_from(const Fp8CastArgs& args, Stream stream) {
  args.e5m2 ? cast_as<T, true>(args, stream) : cast_as<T, false>(args, stream);
}

}  // namespace

void fp8_cast(const Fp8CastArgs& args, Stream stream) {
  with_type(args.type, [&](auto element) { cast_from<decltype(element)>(args, stream); });
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
