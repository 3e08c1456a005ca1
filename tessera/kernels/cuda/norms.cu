// RMSNorm and LayerNorm forward: a block for each row, which reads it once and holds what it can.
#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

constexpr int kThreads = 512;  // two such blocks or more on an SM: the registers of a thread are held down to that
constexpr int kHeld = 4;  // vectors that a thread keeps between its passes; of wider rows it reads the others again

/// A thread's vectors of a row: body(h, i) for the first kHeld of them, of the elements [i, i + N). They are a constant apart,
/// which takes fewer registers for addresses than if all of the block's threads lay between.
template <int N, typename Body>
__device__ void for_held(int64_t dim, Body body) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t start = (thread / kWarp * kHeld * kWarp + thread % kWarp) * N;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int64_t i = start + h * kWarp * N;
    if (i < dim) body(h, i);
  }
}
/// body(i) for the others.
template <int N, typename Body>
__device__ void for_others(int64_t dim, Body body) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t i = threadIdx.x * N + kHeld * step; i < dim; i += step) body(i);
}

/// X: type of x, the weight and the sum; Y: of y.
template <typename X, typename Y, int N, bool kAdds>
__global__ void __launch_bounds__(kThreads, 2) rms_norm_kernel(RmsNormArgs args) {
  const int64_t dim = args.dim, start = blockIdx.x * dim;
  const X* x = static_cast<const X*>(args.x) + start;
  const X* weight = static_cast<const X*>(args.weight);
  Y* y = static_cast<Y*>(args.y) + start;
  const auto value = [&](int64_t i) {
    auto v = packed<N>(x + i);
    if constexpr (kAdds) {
      const auto r = packed<N>(static_cast<const X*>(args.residual) + start + i);
      for (int k = 0; k < N; ++k) {
        X both;
        from_float(v[k] + r[k], both);
        v.set(k, both);
      }
    }
    return v;
  };
  float squares = 0;
  const auto sum_up = [&](int64_t i, const Packed<N, X>& v) {
    if constexpr (kAdds) v.put(static_cast<X*>(args.sum) + start + i);
    for (int k = 0; k < N; ++k) squares += v[k] * v[k];
  };
  Packed<N, X> held[kHeld];
  for_held<N>(dim, [&](int h, int64_t i) { held[h] = value(i); });
  for_held<N>(dim, [&](int h, int64_t i) { sum_up(i, held[h]); });
  for_others<N>(dim, [&](int64_t i) { sum_up(i, value(i)); });
  const float mean = over_block<Add, false>(squares) / static_cast<float>(dim);
  const float scale = 1.0f / sqrtf(mean + args.eps);
  if (threadIdx.x == 0) args.reciprocal_rms[blockIdx.x] = scale;
  const auto write = [&](int64_t i, const Packed<N, X>& v) {
    const auto w = packed<N>(weight + i);
    Floats<N> result;
    for (int k = 0; k < N; ++k) result[k] = w[k] * rounded_to<X>(v[k] * scale);
    store(y + i, result);
  };
  for_held<N>(dim, [&](int h, int64_t i) {
    held[h].unpack_again();
    write(i, held[h]);
  });
  for_others<N>(dim, [&](int64_t i) { write(i, value(i)); });
}

template <typename X, typename Y, int N>
__global__ void __launch_bounds__(kThreads, 2) layer_norm_kernel(LayerNormArgs args) {
  const int64_t dim = args.dim, start = blockIdx.x * dim;
  const X* x = static_cast<const X*>(args.x) + start;
  Y* y = static_cast<Y*>(args.y) + start;
  const auto value = [&](int64_t i) { return packed<N>(x + i); };
  float sum = 0, squares = 0;
  const auto add = [&](const Packed<N, X>& v) {
    for (int k = 0; k < N; ++k) sum += v[k];
  };
  Packed<N, X> held[kHeld];
  for_held<N>(dim, [&](int h, int64_t i) { held[h] = value(i); });
  for_held<N>(dim, [&](int h, int64_t /*i*/) { add(held[h]); });
  for_others<N>(dim, [&](int64_t i) { add(value(i)); });
  const float mean = sum_over_block(sum) / static_cast<float>(dim);
  const auto add_square = [&](const Packed<N, X>& v) {
    for (int k = 0; k < N; ++k) squares += (v[k] - mean) * (v[k] - mean);
  };
  for_held<N>(dim, [&](int h, int64_t /*i*/) { add_square(held[h]); });
  for_others<N>(dim, [&](int64_t i) { add_square(value(i)); });
  const float variance = sum_over_block(squares) / static_cast<float>(dim);
  const float scale = 1.0f / sqrtf(variance + args.eps);
  if (threadIdx.x == 0) {
    args.statistics[2 * blockIdx.x] = mean;
    args.statistics[2 * blockIdx.x + 1] = scale;
  }
  const auto write = [&](int64_t i, const Packed<N, X>& v) {
    const Floats<N> w = load<N>(static_cast<const X*>(args.weight) + i);
    const Floats<N> b = load<N>(static_cast<const X*>(args.bias) + i);
    Floats<N> result;
    for (int k = 0; k < N; ++k) result[k] = w[k] * ((v[k] - mean) * scale) + b[k];
    store(y + i, result);
  };
  for_held<N>(dim, [&](int h, int64_t i) {
    held[h].unpack_again();
    write(i, held[h]);
  });
  for_others<N>(dim, [&](int64_t i) { write(i, value(i)); });
}

}  // namespace

void rms_norm(const RmsNormArgs& args, Stream stream) {
  const bool wide =
      args.dim % kVector == 0 && aligned(args.x, args.residual, args.weight, args.sum, args.y);
  with_norm_types(args.type, args.y_type, [&](auto x, auto y) {
    with_width(wide, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(args.residual != nullptr ? rms_norm_kernel<decltype(x), decltype(y), kWidth, true>
                                      : rms_norm_kernel<decltype(x), decltype(y), kWidth, false>,
             args.rows, threads_for(ceil_div(args.dim, kWidth * kHeld), kThreads), stream, args);
    });
  });
}

void layer_norm(const LayerNormArgs& args, Stream stream) {
  const bool wide = args.dim % kVector == 0 && aligned(args.x, args.weight, args.bias, args.y);
  with_norm_types(args.type, args.y_type, [&](auto x, auto y) {
    with_width(wide, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(layer_norm_kernel<decltype(x), decltype(y), kWidth>, args.rows,
             threads_for(ceil_div(args.dim, kWidth * kHeld), kThreads), stream, args);
    });
  });
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
