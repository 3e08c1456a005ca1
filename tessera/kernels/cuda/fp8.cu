// Numbers of 8 bits and their transpose, of a matrix that is read once.
#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

constexpr int kTileRows = 64, kTileColumns = 128, kEach = kVector;
constexpr int kTileThreads = 256;
constexpr int kPadding = 1;  // so that columns of the tile begin in different banks

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

/// A block has a tile of the matrix, `own`: the scale, if it was `given`.
template <typename T, bool kE5M2, int N>
__global__ void fp8_cast_kernel(Fp8CastArgs args, bool given, float own) {
  __shared__ EightCodes tile[kTileColumns][kTileRows / kEach + kPadding];
  constexpr float kLargest = kE5M2 ? 57344.0f : 448.0f;
  constexpr int kAcross = kTileColumns / kEach, kDown = kTileRows / kEach;
  const int64_t tiles = (args.columns + kTileColumns - 1) / kTileColumns;
  const int64_t first_row = blockIdx.x / tiles * kTileRows;
  const int64_t first_column = blockIdx.x % tiles * kTileColumns;
  const int thread = static_cast<int>(threadIdx.x);
  for (int r = thread / kAcross; r < kTileRows; r += kTileThreads / kAcross) {
    const int c = thread % kAcross * kEach;
    const int64_t row = first_row + r, column = first_column + c;
    if (row >= args.rows || column >= args.columns) continue;
    const T* from = static_cast<const T*>(args.x) + row * args.columns + column;
    float scale = scale_at(args, given, own, kLargest, row, column);
    EightCodes codes;
    for (int part = 0; part < kEach; part += N) {
      const Floats<N> numbers = load<N>(from + part);
      for (int k = 0; k < N; ++k) {
        const int at = part + k;
        if (at > 0 && args.wide == 1) {
          scale = scale_at(args, given, own, kLargest, row, column + at);
        }
        const float x = numbers[k] * scale;
        const float bound = x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
        codes.v[at] = code_of<kE5M2>(bound);
        tile[c + at][r / kEach].v[r % kEach] = codes.v[at];
      }
    }
    if (args.plain != nullptr) {
      *reinterpret_cast<EightCodes*>(args.plain + row * args.columns + column) = codes;
    }
  }
  if (args.transposed == nullptr) return;
  __syncthreads();
  for (int i = thread; i < kTileColumns * kDown; i += kTileThreads) {
    const int c = i / kDown, r = i % kDown * kEach;
    const int64_t row = first_row + r, column = first_column + c;
    if (row >= args.rows || column >= args.columns) continue;
    *reinterpret_cast<EightCodes*>(args.transposed + column * args.rows + row) = tile[c][r / kEach];
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
