// RMSNorm and LayerNorm forward: a block for each row. RMSNorm's reads it once and holds what it can; LayerNorm's reads
// it again from the cache.
#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

constexpr int kHeld = 4;  // vectors that a thread keeps between its passes; of wider rows it reads the others again

/// X: type of x, the weight and the sum; Y: of y.
template <typename X, typename Y, int N>
__global__ void rms_norm_kernel(RmsNormArgs args) {
  const int64_t dim = args.dim, start = blockIdx.x * dim, step = blockDim.x * N;
  const int64_t first = threadIdx.x * N;
  const X* x = static_cast<const X*>(args.x) + start;
  const X* weight = static_cast<const X*>(args.weight);
  Y* y = static_cast<Y*>(args.y) + start;
  const bool adds = args.residual != nullptr;
  const auto value = [&](int64_t i) {
    Floats<N> v = load<N>(x + i);
    if (adds) {
      const Floats<N> r = load<N>(static_cast<const X*>(args.residual) + start + i);
      for (int k = 0; k < N; ++k) v[k] = rounded_to<X>(v[k] + r[k]);
    }
    return v;
  };
  float squares = 0;
  const auto sum_up = [&](int64_t i, const Floats<N>& v) {
    if (adds) store(static_cast<X*>(args.sum) + start + i, v);
    for (int k = 0; k < N; ++k) squares += v[k] * v[k];
  };
  Floats<N> held[kHeld] = {};
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (first + h * step < dim) held[h] = value(first + h * step);
  }
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (first + h * step < dim) sum_up(first + h * step, held[h]);
  }
  for (int64_t i = first + kHeld * step; i < dim; i += step) sum_up(i, value(i));
  const float mean = sum_over_block(squares) / static_cast<float>(dim);
  const float scale = 1.0f / sqrtf(mean + args.eps);
  if (threadIdx.x == 0) args.reciprocal_rms[blockIdx.x] = scale;
  const auto write = [&](int64_t i, Floats<N> v) {
    const Floats<N> w = load<N>(weight + i);
    for (int k = 0; k < N; ++k) v[k] = w[k] * rounded_to<X>(v[k] * scale);
    store(y + i, v);
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (first + h * step < dim) write(first + h * step, held[h]);
  }
  for (int64_t i = first + kHeld * step; i < dim; i += step) write(i, value(i));
}

template <typename X, typename Y, int N>
__global__ void layer_norm_kernel(LayerNormArgs args) {
  const int64_t dim = args.dim, start = blockIdx.x * dim, step = blockDim.x * N;
  const X* x = static_cast<const X*>(args.x) + start;
  Y* y = static_cast<Y*>(args.y) + start;
  float sum = 0;
  for (int64_t i = threadIdx.x * N; i < dim; i += step) {
    const Floats<N> v = load<N>(x + i);
    for (int k = 0; k < N; ++k) sum += v[k];
  }
  const float mean = sum_over_block(sum) / static_cast<float>(dim);
  float squares = 0;
  for (int64_t i = threadIdx.x * N; i < dim; i += step) {
    const Floats<N> v = load<N>(x + i);
    for (int k = 0; k < N; ++k) squares += (v[k] - mean) * (v[k] - mean);
  }
  const float variance = sum_over_block(squares) / static_cast<float>(dim);
  const float scale = 1.0f / sqrtf(variance + args.eps);
  if (threadIdx.x == 0) {
    args.statistics[2 * blockIdx.x] = mean;
    args.statistics[2 * blockIdx.x + 1] = scale;
  }
  for (int64_t i = threadIdx.x * N; i < dim; i += step) {
    Floats<N> v = load<N>(x + i);
    const Floats<N> w = load<N>(static_cast<const X*>(args.weight) + i);
    const Floats<N> b = load<N>(static_cast<const X*>(args.bias) + i);
    for (int k = 0; k < N; ++k) v[k] = w[k] * ((v[k] - mean) * scale) + b[k];
    store(y + i, v);
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args, Stream stream) {
  const bool wide =
      args.dim % kVector == 0 && aligned(args.x, args.residual, args.weight, args.sum, args.y);
  with_norm_types(args.type, args.y_type, [&](auto x, auto y) {
    with_width(wide, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(rms_norm_kernel<decltype(x), decltype(y), kWidth>, args.rows,
             threads_for(ceil_div(args.dim, kWidth * kHeld)), stream, args);
    });
  });
}

void layer_norm(const LayerNormArgs& args, Stream stream) {
  const bool wide = args.dim % kVector == 0 && aligned(args.x, args.weight, args.bias, args.y);
  with_norm_types(args.type, args.y_type, [&](auto x, auto y) {
    with_width(wide, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(layer_norm_kernel<decltype(x), decltype(y), kWidth>, args.rows,
             threads_for(args.dim / kWidth), stream, args);
    });
  });
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
