// RMSNorm and LayerNorm backward, and sums over rows. A block takes a group of rows and keeps the
// sums of its columns in registers; a second kernel adds the groups in their order. So no atomics,
// and the same bits at each run.
#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

constexpr int64_t kProcessors = 132;           // of an H100
constexpr int64_t kThreadsOfProcessor = 1024;  // which the registers of a thread leave room for
constexpr int kHeld = 8;                       // columns whose sums a thread keeps

/// The rows and columns of a block of a grid of groups x tiles.
struct Part {
  int64_t group, first_row, last_row, first_column;
};

int64_t tiles_of(int64_t dim, int threads) { return ceil_div(dim, int64_t{threads} * kHeld); }

__device__ inline Part part_of_block(int64_t rows, int64_t rows_each, int64_t groups) {
  const int64_t group = blockIdx.x % groups, tile = blockIdx.x / groups;
  const int64_t first = group * rows_each;
  return {group, first, first + rows_each < rows ? first + rows_each : rows,
          tile * blockDim.x * kHeld};
}

/// Calls body(h, i) for the columns [i, i + N) that this thread keeps sums of, in place h.
template <int N, typename Body>
__device__ void for_held(const Part& part, int64_t dim, Body body) {
#pragma unroll
  for (int h = 0; h < kHeld / N; ++h) {
    const int64_t i = part.first_column + (static_cast<int64_t>(h) * blockDim.x + threadIdx.x) * N;
    if (i < dim) body(h, i);
  }
}

template <int N>
__device__ void add_to(Floats<N>& sums, const Floats<N>& values) {
  for (int k = 0; k < N; ++k) sums[k] += values[k];
}

/// A row of an RMSNorm's backward as a thread has it: its columns of this tile.
template <typename X, typename G, int N>
struct NormRow {
  Packed<N, G> grad;
  Packed<N, X> x, grad_sum;
};

/// X: type of x, the weight and grad_x; G: of grad.
template <typename X, typename G, int N, bool kAdds>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_grad_kernel(RmsNormGradArgs args, RowGroups groups, float* partial) {
  constexpr int kOwn = kHeld / N;
  const int64_t dim = args.dim;
  const Part part = part_of_block(args.rows, groups.rows_each, groups.groups);
  const bool whole = dim <= static_cast<int64_t>(blockDim.x) * kHeld;  // one tile has all of a row
  const G* grad = static_cast<const G*>(args.grad);
  const X* x = static_cast<const X*>(args.x);
  const X* weight = static_cast<const X*>(args.weight);
  Floats<N> sums[kOwn] = {};
  NormRow<X, G, N> next[kOwn];
  const auto fetch = [&](int64_t row) {
    for_held<N>(part, dim, [&](int h, int64_t i) {
      next[h].grad.fetch(grad + row * dim + i);
      next[h].x.fetch(x + row * dim + i);
      if constexpr (kAdds) {
        next[h].grad_sum.fetch(static_cast<const X*>(args.grad_sum) + row * dim + i);
      }
    });
  };
  if (part.first_row < part.last_row) fetch(part.first_row);
  for (int64_t row = part.first_row; row < part.last_row; ++row) {
    NormRow<X, G, N> own[kOwn];
#pragma unroll
    for (int h = 0; h < kOwn; ++h) own[h] = next[h];
    if (row + 1 < part.last_row) fetch(row + 1);  // on its way while this one is summed
    const float scale = args.reciprocal_rms[row];
    float dots = 0;
    if (whole) {
      for_held<N>(part, dim, [&](int h, int64_t i) {
        const Floats<N> w = load<N>(weight + i);
        for (int k = 0; k < N; ++k) dots += own[h].grad[k] * w[k] * own[h].x[k];
      });
    } else {
      for (int64_t i = threadIdx.x * N; i < dim; i += blockDim.x * N) {
        const Floats<N> g = load<N>(grad + row * dim + i), w = load<N>(weight + i),
                        v = load<N>(x + row * dim + i);
        for (int k = 0; k < N; ++k) dots += g[k] * w[k] * v[k];
      }
    }
    const float along = sum_over_block(dots) * scale * scale * scale / static_cast<float>(dim);
    for_held<N>(part, dim, [&](int h, int64_t i) {
      const Floats<N> w = load<N>(weight + i);
      Floats<N> result, of_weight;
      for (int k = 0; k < N; ++k) {
        const float g = own[h].grad[k], v = own[h].x[k];
        result[k] = kAdds ? own[h].grad_sum[k] : 0;
        result[k] += g * w[k] * scale - v * along;
        of_weight[k] = g * rounded_to<X>(v * scale);
      }
      store(static_cast<X*>(args.grad_x) + row * dim + i, result);
      add_to(sums[h], of_weight);
    });
  }
  for_held<N>(part, dim, [&](int h, int64_t i) { store(partial + part.group * dim + i, sums[h]); });
}

template <typename X, typename G, int N>
__global__ void layer_norm_grad_kernel(LayerNormGradArgs args, RowGroups groups, float* partial) {
  const int64_t dim = args.dim;
  const Part part = part_of_block(args.rows, groups.rows_each, groups.groups);
  const X* weight = static_cast<const X*>(args.weight);
  Floats<N> sums[kHeld / N] = {}, bias_sums[kHeld / N] = {};
  for (int64_t row = part.first_row; row < part.last_row; ++row) {
    const G* grad = static_cast<const G*>(args.grad) + row * dim;
    const X* x = static_cast<const X*>(args.x) + row * dim;
    const float mean = args.statistics[2 * row], scale = args.statistics[2 * row + 1];
    float sum = 0, dots = 0;
    for (int64_t i = threadIdx.x * N; i < dim; i += blockDim.x * N) {
      const Floats<N> g = load<N>(grad + i), w = load<N>(weight + i), v = load<N>(x + i);
      for (int k = 0; k < N; ++k) {
        sum += g[k] * w[k];
        dots += g[k] * w[k] * (v[k] - mean);
      }
    }
    const float average = sum_over_block(sum) / static_cast<float>(dim);
    const float along = sum_over_block(dots) * scale * scale / static_cast<float>(dim);
    for_held<N>(part, dim, [&](int h, int64_t i) {
      const Floats<N> g = load<N>(grad + i), w = load<N>(weight + i), v = load<N>(x + i);
      Floats<N> result, of_weight;
      for (int k = 0; k < N; ++k) {
        const float centred = v[k] - mean;
        result[k] = (g[k] * w[k] - average - centred * along) * scale;
        of_weight[k] = g[k] * centred * scale;
      }
      store(static_cast<X*>(args.grad_x) + row * dim + i, result);
      add_to(sums[h], of_weight);
      add_to(bias_sums[h], g);
    });
  }
  for_held<N>(part, dim, [&](int h, int64_t i) {
    float* own = partial + 2 * part.group * dim + i;
    store(own, sums[h]);
    store(own + dim, bias_sums[h]);
  });
}

template <typename X, int N>
__global__ void sum_of_rows_kernel(const X* x, int64_t rows, int64_t dim, RowGroups groups,
                                   float* partial) {
  const Part part = part_of_block(rows, groups.rows_each, groups.groups);
  Floats<N> sums[kHeld / N] = {};
  for (int64_t row = part.first_row; row < part.last_row; ++row) {
    for_held<N>(part, dim, [&](int h, int64_t i) { add_to(sums[h], load<N>(x + row * dim + i)); });
  }
  for_held<N>(part, dim, [&](int h, int64_t i) { store(partial + part.group * dim + i, sums[h]); });
}

/// partial [groups, dim] -> sums [dim]: a block for 32 columns; a share of its threads takes
/// every 32nd group.
constexpr int kColumns = 32, kShares = 32;
__global__ void add_groups_kernel(const float* partial, int64_t groups, int64_t dim, float* sums) {
  __shared__ float of_shares[kShares][kColumns];
  const int lane = threadIdx.x % kColumns, share = threadIdx.x / kColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + lane;
  float sum = 0;
  if (column < dim) {
    for (int64_t group = share; group < groups; group += kShares) {
      sum += partial[group * dim + column];
    }
  }
  of_shares[share][lane] = sum;
  __syncthreads();
  if (share > 0 || column >= dim) return;
  for (int other = 1; other < kShares; ++other) sum += of_shares[other][lane];
  sums[column] = sum;
}

void add_groups(const float* partial, int64_t groups, int64_t dim, float* sums, Stream stream) {
  launch(add_groups_kernel, ceil_div(dim, kColumns), kColumns * kShares, stream, partial, groups,
         dim, sums);
}

/// Calls launch_one(width, blocks, threads) for the columns of groups of rows.
template <typename Launch>
void over_groups(const RowGroups& groups, int64_t dim, bool aligned, Launch launch_one) {
  with_width(aligned && dim % kVector == 0, [&](auto width) {
    const int threads = threads_for(dim / decltype(width)::value, kMaxThreads);
    launch_one(width, groups.groups * tiles_of(dim, threads), threads);
  });
}

}  // namespace

RowGroups groups_of(int64_t rows, int64_t dim) {
  // As many blocks as the processors hold at once.
  const int64_t threads = threads_for(ceil_div(dim, kHeld), kMaxThreads);
  const int64_t most = kProcessors * (kThreadsOfProcessor / threads);
  const int64_t each = ceil_div(rows, most) < 1 ? 1 : ceil_div(rows, most);
  return {each, ceil_div(rows, each)};
}

void rms_norm_grad(const RmsNormGradArgs& args, float* partial, float* sums, Stream stream) {
  const auto groups = groups_of(args.rows, args.dim);
  const bool wide = aligned(args.grad, args.grad_sum, args.x, args.weight, args.grad_x, partial);
  with_norm_types(args.type, args.grad_type, [&](auto x, auto grad) {
    over_groups(groups, args.dim, wide, [&](auto width, int64_t blocks, int threads) {
      using X = decltype(x);
      using G = decltype(grad);
      constexpr int kWidth = decltype(width)::value;
      launch(args.grad_sum != nullptr ? rms_norm_grad_kernel<X, G, kWidth, true>
                                      : rms_norm_grad_kernel<X, G, kWidth, false>,
             blocks, threads, stream, args, groups, partial);
    });
  });
  add_groups(partial, groups.groups, args.dim, sums, stream);
}

void layer_norm_grad(const LayerNormGradArgs& args, float* partial, float* sums, Stream stream) {
  const auto groups = groups_of(args.rows, args.dim);
  const bool wide = aligned(args.grad, args.x, args.weight, args.grad_x, partial);
  with_norm_types(args.type, args.grad_type, [&](auto x, auto grad) {
    over_groups(groups, args.dim, wide, [&](auto width, int64_t blocks, int threads) {
      launch(layer_norm_grad_kernel<decltype(x), decltype(grad), decltype(width)::value>, blocks,
             threads, stream, args, groups, partial);
    });
  });
  add_groups(partial, groups.groups, 2 * args.dim, sums, stream);
}

void sum_of_rows(const void* x, Element type, int64_t rows, int64_t dim, float* partial,
                 float* sums, Stream stream) {
  const auto groups = groups_of(rows, dim);
  with_type(type, [&](auto element) {
    using X = decltype(element);
    over_groups(groups, dim, aligned(x, partial), [&](auto width, int64_t blocks, int threads) {
      launch(sum_of_rows_kernel<X, decltype(width)::value>, blocks, threads, stream,
             static_cast<const X*>(x), rows, dim, groups, partial);
    });
  });
  add_groups(partial, groups.groups, dim, sums, stream);
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
