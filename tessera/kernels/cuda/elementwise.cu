// Rotary embedding and the activations of feed-forward layers: each element read once, written once.
#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

/// A block for each of batch * tokens rows; a thread rotates N pairs.
template <typename T, int N>
__global__ void rotary_kernel(RotaryArgs args) {
  const int64_t row = blockIdx.x, token = row % args.tokens;
  const int half = static_cast<int>(args.dim / 2), vectors = half / N;
  const T* x_row = static_cast<const T*>(args.x) + row / args.tokens * args.batch_stride +
                   token * args.token_stride;
  T* y_row = static_cast<T*>(args.y) + row * args.heads * args.dim;
  const float* cos = args.cos + row % args.table_rows * args.dim;
  const float* sin = args.sin + row % args.table_rows * args.dim;
  // The transpose swaps which half's sine meets which, and the sign.
  const float* sin_of_second = args.inverse ? sin + half : sin;
  const float* sin_of_first = args.inverse ? sin : sin + half;
  const float sign = args.inverse ? -1.0f : 1.0f;
  const int all = static_cast<int>(args.heads) * vectors;
  for (int j = static_cast<int>(threadIdx.x); j < all; j += static_cast<int>(blockDim.x)) {
    const int64_t head = j / vectors;
    const int i = j % vectors * N;
    const T* x = x_row + head * args.head_stride + i;
    T* y = y_row + head * args.dim + i;
    Floats<N> first = load<N>(x), second = load<N>(x + half);
    const Floats<N> cos1 = load<N>(cos + i), cos2 = load<N>(cos + half + i);
    const Floats<N> sin1 = load<N>(sin_of_first + i), sin2 = load<N>(sin_of_second + i);
    for (int k = 0; k < N; ++k) {
      const float a = first[k], b = second[k];
      first[k] = a * cos1[k] - sign * b * sin2[k];
      second[k] = b * cos2[k] + sign * a * sin1[k];
    }
    store(y, first);
    store(y + half, second);
  }
}

/// Row and first column of a thread of a grid of rows x blocks that share a row.
struct Spot {
  int64_t row, column;
};
template <int N>
__device__ Spot spot_of(int64_t blocks_a_row) {
  const auto blocks = static_cast<uint32_t>(blocks_a_row);  // a short division
  return {blockIdx.x / blocks, (static_cast<int64_t>(blockIdx.x % blocks) * blockDim.x +
                                static_cast<int64_t>(threadIdx.x)) *
                                   N};
}

/// Gate and up as they count; a NaN stays one.
struct Gated {
  float gate, up, scale;
  bool gate_moves = true, up_moves = true;  ///< not held back by a bound
};
template <typename Args>
__device__ Gated gated(const Args& args, float gate, float up) {
  if (!args.clamped) return {gate, up, 1.0f};
  const float limit = args.clamp.limit;
  Gated result{gate > limit ? limit : gate, up, args.clamp.scale};
  result.gate_moves = !(gate > limit), result.up_moves = !(fabsf(up) > limit);
  if (!result.up_moves) result.up = up > 0 ? limit : -limit;
  result.up += 1.0f;
  return result;
}

template <typename T, int N>
__global__ void swiglu_kernel(SwigluArgs args, int64_t blocks_a_row) {
  const Spot at = spot_of<N>(blocks_a_row);
  if (at.column >= args.dim) return;
  const Floats<N> g =
      load<N>(static_cast<const T*>(args.gate) + at.row * args.gate_stride + at.column);
  const Floats<N> u = load<N>(static_cast<const T*>(args.up) + at.row * args.up_stride + at.column);
  Floats<N> y;
  for (int k = 0; k < N; ++k) {
    const Gated in = gated(args, g[k], u[k]);
    y[k] = in.gate / (1.0f + expf(-in.scale * in.gate)) * in.up;
  }
  store(static_cast<T*>(args.y) + at.row * args.dim + at.column, y);
}

template <typename T, int N>
__global__ void swiglu_grad_kernel(SwigluGradArgs args, int64_t blocks_a_row) {
  const Spot at = spot_of<N>(blocks_a_row);
  if (at.column >= args.dim) return;
  const Floats<N> dy = load<N>(static_cast<const T*>(args.grad) + at.row * args.dim + at.column);
  const Floats<N> g =
      load<N>(static_cast<const T*>(args.gate) + at.row * args.gate_stride + at.column);
  const Floats<N> u = load<N>(static_cast<const T*>(args.up) + at.row * args.up_stride + at.column);
  Floats<N> of_gate, of_up;
  for (int k = 0; k < N; ++k) {
    const Gated in = gated(args, g[k], u[k]);
    const float inner = in.scale * in.gate, s = 1.0f / (1.0f + expf(-inner));
    of_up[k] = in.up_moves ? dy[k] * in.gate * s : 0.0f;
    of_gate[k] = in.gate_moves ? dy[k] * in.up * s * (1.0f + inner * (1.0f - s)) : 0.0f;
  }
  const int64_t place = at.row * args.grad_stride + at.column;
  store(static_cast<T*>(args.grad_gate) + place, of_gate);
  store(static_cast<T*>(args.grad_up) + place, of_up);
}

constexpr float kGeluScale = 0.79788456080286536f;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715f;

template <typename T, int N>
__global__ void gelu_tanh_kernel(GeluArgs args) {
  for_elements<N>(args.count, [&](auto width, int64_t i) {
    constexpr int kWidth = decltype(width)::value;
    Floats<kWidth> v = load<kWidth>(static_cast<const T*>(args.x) + i);
    for (int k = 0; k < kWidth; ++k) {
      const float x = v[k];
      v[k] = 0.5f * x * (1.0f + tanhf(kGeluScale * (x + kGeluCubic * x * x * x)));
    }
    store(static_cast<T*>(args.y) + i, v);
  });
}

template <typename T, int N>
__global__ void gelu_tanh_grad_kernel(GeluArgs args) {
  for_elements<N>(args.count, [&](auto width, int64_t i) {
    constexpr int kWidth = decltype(width)::value;
    const Floats<kWidth> v = load<kWidth>(static_cast<const T*>(args.x) + i);
    Floats<kWidth> g = load<kWidth>(static_cast<const T*>(args.grad) + i);
    for (int k = 0; k < kWidth; ++k) {
      const float x = v[k], t = tanhf(kGeluScale * (x + kGeluCubic * x * x * x));
      const float slope = kGeluScale * (1.0f + 3.0f * kGeluCubic * x * x);
      g[k] *= 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope;
    }
    store(static_cast<T*>(args.y) + i, g);
  });
}

template <typename T, int N>
__global__ void add_kernel(AddArgs args) {
  for_elements<N>(args.count, [&](auto width, int64_t i) {
    constexpr int kWidth = decltype(width)::value;
    T* to = static_cast<T*>(args.to) + i;
    Floats<kWidth> sum = load<kWidth>(to);
    const Floats<kWidth> v = load<kWidth>(args.from + i);
    for (int k = 0; k < kWidth; ++k) sum[k] += v[k];
    store(to, sum);
  });
}

}  // namespace

void rotary(const RotaryArgs& args, Stream stream) {
  with_type(args.type, [&](auto element) {
    const int64_t each = 16 / static_cast<int64_t>(sizeof(element));
    const bool wide = args.dim % (2 * kVector) == 0 && args.batch_stride % each == 0 &&
                      args.token_stride % each == 0 && args.head_stride % each == 0 &&
                      aligned(args.x, args.y, args.cos, args.sin);
    with_width(wide, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(rotary_kernel<decltype(element), kWidth>, args.batch * args.tokens,
             threads_for(args.heads * args.dim / 2 / kWidth), stream, args);
    });
  });
}

namespace {

/// Calls launch_one(element, width, blocks a row) for rows of gate and up; the rest lies without gaps,
/// or at twice their distance.
template <typename Args, typename Launch>
void over_gated_rows(const Args& args, bool aligned, Launch launch_one) {
  with_type(args.type, [&](auto element) {
    constexpr int64_t kEach = 16 / static_cast<int64_t>(sizeof(element));
    const bool wide = aligned && args.dim % kVector == 0 && args.gate_stride % kEach == 0 &&
                      args.up_stride % kEach == 0;
    with_width(wide, [&](auto width) {
      launch_one(element, width, blocks_for<decltype(width)::value>(args.dim));
    });
  });
}

}  // namespace

void swiglu(const SwigluArgs& args, Stream stream) {
  over_gated_rows(args, aligned(args.gate, args.up, args.y),
                  [&](auto element, auto width, int64_t blocks) {
                    launch(swiglu_kernel<decltype(element), decltype(width)::value>,
                           args.rows * blocks, kFlatThreads, stream, args, blocks);
                  });
}

void swiglu_grad(const SwigluGradArgs& args, Stream stream) {
  over_gated_rows(args, aligned(args.grad, args.gate, args.up, args.grad_gate, args.grad_up),
                  [&](auto element, auto width, int64_t blocks) {
                    launch(swiglu_grad_kernel<decltype(element), decltype(width)::value>,
                           args.rows * blocks, kFlatThreads, stream, args, blocks);
                  });
}

void gelu_tanh(const GeluArgs& args, Stream stream) {
  with_type(args.type, [&](auto element) {
    using T = decltype(element);
    with_width(aligned(args.x, args.grad, args.y), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(args.grad == nullptr ? gelu_tanh_kernel<T, kWidth> : gelu_tanh_grad_kernel<T, kWidth>,
             blocks_for<kWidth>(args.count), kFlatThreads, stream, args);
    });
  });
}

void add(const AddArgs& args, Stream stream) {
  with_type(args.type, [&](auto element) {
    with_width(aligned(args.to, args.from), [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(add_kernel<decltype(element), kWidth>, blocks_for<kWidth>(args.count), kFlatThreads,
             stream, args);
    });
  });
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
