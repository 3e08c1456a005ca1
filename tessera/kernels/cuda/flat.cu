// AdamW, stochastic rounding, dropout and sums of squares over flat buffers. Arithmetic and random
// bits as in cpu/flat_impl.h.
#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

// --- Random bits.

/// Wellons' lowbias32.
__device__ inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

__device__ inline uint32_t bits_at(const RandomBits& bits, int64_t i) {
  const auto position = static_cast<uint64_t>(bits.first + i);
  const auto low = static_cast<uint32_t>(position), high = static_cast<uint32_t>(position >> 32);
  return mixed(mixed(low ^ bits.key[0]) + high * 0x9e3779b1u + bits.key[1]);
}

/// The bits of N elements whose positions follow each other. Of those alike but for their last 16 bits, the first steps are
/// the same but for one xor.
template <int N>
struct Bits {
  uint32_t v[N];
};
template <int N>
__device__ Bits<N> bits_from(const RandomBits& bits, int64_t i) {
  const auto position = static_cast<uint64_t>(bits.first + i);
  const auto low = static_cast<uint32_t>(position), high = static_cast<uint32_t>(position >> 32);
  Bits<N> result;
  if ((low & 0xffffu) > 0x10000u - N) {
    for (int k = 0; k < N; ++k) result.v[k] = bits_at(bits, i + k);
    return result;
  }
  const uint32_t flipped = bits.key[0] ^ ((low ^ bits.key[0]) >> 16);
  const uint32_t added = high * 0x9e3779b1u + bits.key[1];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    uint32_t x = ((low + k) ^ flipped) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    result.v[k] = mixed((x ^ (x >> 16)) + added);
  }
  return result;
}

/// Up or down to a bfloat16, up with the probability that makes the mean x.
__device__ inline float rounded_stochastically(float x, const Bf16* /*to*/, uint32_t bits16) {
  const auto rounded = bits_as<float>((bits_as<uint32_t>(x) + bits16) & 0xffff0000u);
  return x - x == 0.0f ? rounded : x;  // infinity and NaN as they are
}

/// Up or down to a number without the last kDropped bits of its mantissa; those below 2^kSmallest, the smallest normal one, are a
/// subnormal's steps.
template <int kDropped, int kSmallest>
__device__ float rounded_up_or_down(float x, uint32_t random) {
  constexpr uint32_t kSmallestBits = static_cast<uint32_t>(127 + kSmallest) << 23;
  const float step = bits_as<float>(kSmallestBits - (static_cast<uint32_t>(23 - kDropped) << 23));
  const uint32_t bits = bits_as<uint32_t>(x), size = bits & 0x7fffffffu;
  uint32_t rounded = (size + random) & ~((1u << kDropped) - 1);
  if (size < kSmallestBits) {
    const float up = static_cast<float>(random) * (1.0f / (1 << kDropped));
    const float steps = bits_as<float>(size) * (1 / step) + up;
    rounded = bits_as<uint32_t>(static_cast<float>(static_cast<int32_t>(steps)) * step);
  }
  return bits_as<float>(rounded | (bits & 0x80000000u));
}

__device__ inline float rounded_stochastically(float x, const Half* /*to*/, uint32_t bits16) {
  return x - x == 0.0f ? rounded_up_or_down<13, -14>(x, bits16 >> 3) : x;
}

/// What is larger than the largest becomes that.
__device__ inline float rounded_stochastically(float x, const E4M3* /*to*/, uint32_t bits16) {
  if (x != x) return x;
  return rounded_up_or_down<20, -6>(fminf(fmaxf(x, -448.0f), 448.0f), bits16 << 4);
}

__device__ inline float for_store(float x, const float* /*to*/, bool /*stochastic*/, uint32_t) {
  return x;
}
__device__ inline float for_store(float x, const Bf16* to, bool stochastic, uint32_t bits16) {
  return stochastic ? rounded_stochastically(x, to, bits16) : x;
}

// --- AdamW.

/// P, G, S: types of parameter, gradient, states.
template <typename P, typename G, typename S, int N>
__global__ void adamw_kernel(AdamWArgs args) {
  if (args.found_inf != nullptr && *args.found_inf != 0) return;
  float scale = args.gradient_scale;
  if (args.gradient_factor != nullptr) scale *= *args.gradient_factor;
  for_elements<N>(args.count, [&](auto width, int64_t i) {
    constexpr int kWidth = decltype(width)::value;
    P* parameter = static_cast<P*>(args.parameter) + i;
    S* exp_avg = static_cast<S*>(args.exp_avg) + i;
    S* exp_avg_sq = static_cast<S*>(args.exp_avg_sq) + i;
    const Floats<kWidth> gradient = load<kWidth>(static_cast<const G*>(args.gradient) + i);
    Floats<kWidth> p = load<kWidth>(parameter), m = load<kWidth>(exp_avg),
                   v = load<kWidth>(exp_avg_sq), plain;
    Bits<kWidth> random = {};
    if (args.stochastic) random = bits_from<kWidth>(args.bits, i);
    for (int k = 0; k < kWidth; ++k) {
      const float g = gradient[k] * scale;
      m[k] += (g - m[k]) * args.blend;
      v[k] = v[k] * args.beta_sq + g * g * args.blend_sq;
      const float denominator = sqrtf(v[k]) * args.reciprocal_root + args.eps;
      plain[k] = p[k] * args.keep - args.step_size * m[k] / denominator;
      uint32_t bits = 0, state_bits = 0;
      if (args.stochastic) {
        bits = random.v[k];
        state_bits = mixed(bits ^ 0x5bd1e995u);
      }
      p[k] = for_store(plain[k], parameter, args.stochastic, bits >> 16);
      m[k] = for_store(m[k], exp_avg, args.stochastic, state_bits >> 16);
      v[k] = for_store(v[k], exp_avg_sq, args.stochastic, state_bits & 0xffffu);
    }
    store(parameter, p);
    store(exp_avg, m);
    store(exp_avg_sq, v);
    if (args.copy != nullptr) store(static_cast<Bf16*>(args.copy) + i, plain);
  });
}

// --- Stochastic rounding and dropout.

template <typename T, int N>
__global__ void round_kernel(RoundArgs args) {
  T* to = static_cast<T*>(args.to);
  for_elements<N>(args.count, [&](auto width, int64_t i) {
    constexpr int kWidth = decltype(width)::value;
    Floats<kWidth> v = load<kWidth>(args.from + i);
    const auto random = bits_from<kWidth>(args.bits, i);
    for (int k = 0; k < kWidth; ++k) {
      v[k] = rounded_stochastically(v[k], to, random.v[k] >> 16);
    }
    store(to + i, v);
  });
}

/// Of element i of rows that lie apart.
__device__ inline int64_t position_of(const DropArgs& args, int64_t i) {
  if (args.row == 0) return i;
  if (((i | args.row) >> 32) == 0) {  // a short division takes a fraction of the time
    const auto short_i = static_cast<uint32_t>(i), row = static_cast<uint32_t>(args.row);
    return short_i / row * args.row_stride + short_i % row;
  }
  return i / args.row * args.row_stride + i % args.row;
}

template <typename T, int N>
__global__ void drop_kernel(DropArgs args) {
  const bool together = args.row % N == 0;  // no vector is of two rows
  for_elements<N>(args.count, [&](auto width, int64_t i) {
    constexpr int kWidth = decltype(width)::value;
    Floats<kWidth> v = load<kWidth>(static_cast<const T*>(args.x) + i);
    Bits<kWidth> random;
    if (together) {
      random = bits_from<kWidth>(args.bits, position_of(args, i));
    } else {
      for (int k = 0; k < kWidth; ++k) {
        random.v[k] = bits_at(args.bits, position_of(args, i + k));
      }
    }
    for (int k = 0; k < kWidth; ++k) {
      v[k] = random.v[k] >= args.threshold ? v[k] * args.scale : 0.0f;
    }
    store(static_cast<T*>(args.y) + i, v);
  });
}

// --- Sums of squares.

constexpr int64_t kMostPartials = 132 * 8;  // what an H100 holds at once
constexpr int kSquareThreads = 256;
constexpr int kSquareVectors = 4;  // of a thread that are on their way together

template <typename T, int N>
__global__ void squares_kernel(const T* values, int64_t count, double* partial) {
  double sum = 0;
  const auto add = [&](float v) { sum += static_cast<double>(v) * static_cast<double>(v); };
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  for (; i + (kSquareVectors - 1) * step + N <= count; i += kSquareVectors * step) {
    Packed<N, T> v[kSquareVectors];
#pragma unroll
    for (int part = 0; part < kSquareVectors; ++part) v[part].fetch(values + i + part * step);
#pragma unroll
    for (int part = 0; part < kSquareVectors; ++part) {
      for (int k = 0; k < N; ++k) add(v[part][k]);
    }
  }
  for (; i + N <= count; i += step) {
    const Floats<N> v = load<N>(values + i);
    for (int k = 0; k < N; ++k) add(v[k]);
  }
  for (; i < count; ++i) add(to_float(values[i]));  // one thread has what is left
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void add_partial_squares_kernel(const double* partial, int64_t count, double* sum) {
  double own = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) own += partial[i];
  own = sum_over_block(own);
  if (threadIdx.x == 0) *sum = own;
}

/// What AdamW takes.
template <typename Body>
void with_wide_type(Element type, Body body) {
  type == Element::float32 ? body(float{}) : body(Bf16{});
}

template <typename T>
void round_to(const RoundArgs& args, Stream stream) {
  constexpr int kWide = 16 / sizeof(T);
  const bool wide = aligned(args.from, args.to);
  launch(wide ? round_kernel<T, kWide> : round_kernel<T, 1>,
         wide ? blocks_for<kWide>(args.count) : blocks_for<1>(args.count), kFlatThreads, stream,
         args);
}

}  // namespace

void adamw(const AdamWArgs& args, Stream stream) {
  const bool wide =
      aligned(args.parameter, args.gradient, args.exp_avg, args.exp_avg_sq, args.copy);
  with_wide_type(args.parameter_type, [&](auto parameter) {
    with_wide_type(args.gradient_type, [&](auto gradient) {
      with_wide_type(args.state_type, [&](auto state) {
        with_width(wide, [&](auto width) {
          constexpr int kWidth = decltype(width)::value;
          launch(adamw_kernel<decltype(parameter), decltype(gradient), decltype(state), kWidth>,
                 blocks_for<kWidth>(args.count), kFlatThreads, stream, args);
        });
      });
    });
  });
}

void round_stochastically(const RoundArgs& args, Stream stream) {
  switch (args.type) {
    case Element::bfloat16:
      return round_to<Bf16>(args, stream);
    case Element::float16:
      return round_to<Half>(args, stream);
    default:
      return round_to<E4M3>(args, stream);
  }
}

void drop(const DropArgs& args, Stream stream) {
  with_type(args.type, [&](auto element) {
    with_width(aligned(args.x, args.y), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(drop_kernel<decltype(element), kWidth>, blocks_for<kWidth>(args.count), kFlatThreads,
             stream, args);
    });
  });
}

int64_t partial_squares(int64_t count) {
  const int64_t blocks = ceil_div(count, int64_t{kSquareThreads} * kVector);
  return blocks < 1 ? 1 : blocks > kMostPartials ? kMostPartials : blocks;
}

void sum_of_squares(const void* values, Element type, int64_t count, double* partial, double* sum,
                    Stream stream) {
  const int64_t blocks = partial_squares(count);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    with_width(aligned(values), [&](auto width) {
      launch(squares_kernel<T, decltype(width)::value>, blocks, kSquareThreads, stream,
             static_cast<const T*>(values), count, partial);
    });
  });
  launch(add_partial_squares_kernel, 1, kSquareThreads, stream, partial, blocks, sum);
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
