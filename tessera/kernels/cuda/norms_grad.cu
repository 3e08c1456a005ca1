// RMSNorm and LayerNorm backward, and sums over rows. A block takes a group of rows and keeps the
// sums of its columns in registers; a second kernel adds the groups in their order. So no atomics,
// and the same bits at each run.
#include "tessera/kernels/cuda/gpu.h"
#include "tessera/kernels/cuda/teams.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

constexpr int64_t kProcessors = 132;           // of an H100
constexpr int64_t kThreadsOfProcessor = 1024;  // that sum rows
constexpr int kHeld = 8;                       // columns of theirs

/// The rows and columns of a block of a grid of groups x tiles.
struct Part {
  int64_t group, first_row, last_row, first_column;
};

int64_t tiles_of(int64_t dim, int threads) { return ceil_div(dim, int64_t{threads} * kHeld); }

__device__ inline Part part_of_block(int64_t rows, const RowGroups& groups, int64_t columns) {
  const int64_t group = blockIdx.x % groups.groups, tile = blockIdx.x / groups.groups;
  const int64_t first = group * groups.rows_each;
  return {group, first, first + groups.rows_each < rows ? first + groups.rows_each : rows,
          tile * columns};
}

/// Calls body(h, i) for the columns [i, i + N) of rows that this thread sums, in place h.
template <int N, typename Body>
__device__ void for_held(const Part& part, int64_t dim, Body body) {
#pragma unroll
  for (int h = 0; h < kHeld / N; ++h) {
    const int64_t i = part.first_column + (static_cast<int64_t>(h) * blockDim.x + threadIdx.x) * N;
    if (i < dim) body(h, i);
  }
}

// --- Norms.

/// An RMSNorm's arithmetic. X: type of x, the weight and grad_x; G: of grad. `gw`: a gradient times its weight.
template <typename XType, typename GType, bool kAddsSum>
struct RmsMath {
  using X = XType;
  using G = GType;
  static constexpr bool kAdds = kAddsSum;
  static constexpr int kSums = 1;  ///< over a row, and for each column
  struct Row {
    float scale, along;
  };
  RmsNormGradArgs args;

  __device__ Row row(int64_t r) const { return {args.reciprocal_rms[r], 0}; }
  static __device__ void add(const Row&, float gw, float v, Floats<1>& sums) { sums[0] += gw * v; }
  __device__ void finish(Row& row, const Floats<1>& sums) const {
    row.along = sums[0] * row.scale * row.scale * row.scale / static_cast<float>(args.dim);
  }
  static __device__ float grad_x(const Row& row, float gw, float v) {
    return gw * row.scale - v * row.along;
  }
  static __device__ Floats<1> of_column(const Row& row, float g, float v) {
    return {{g * rounded_to<X>(v * row.scale)}};
  }
};

template <typename XType, typename GType>
struct LayerMath {
  using X = XType;
  using G = GType;
  static constexpr bool kAdds = false;
  static constexpr int kSums = 2;
  struct Row {
    float mean, scale, average, along;
  };
  LayerNormGradArgs args;

  __device__ Row row(int64_t r) const {
    return {args.statistics[2 * r], args.statistics[2 * r + 1], 0, 0};
  }
  static __device__ void add(const Row& row, float gw, float v, Floats<2>& sums) {
    sums[0] += gw;
    sums[1] += gw * (v - row.mean);
  }
  __device__ void finish(Row& row, const Floats<2>& sums) const {
    row.average = sums[0] / static_cast<float>(args.dim);
    row.along = sums[1] * row.scale * row.scale / static_cast<float>(args.dim);
  }
  static __device__ float grad_x(const Row& row, float gw, float v) {
    return (gw - row.average - (v - row.mean) * row.along) * row.scale;
  }
  static __device__ Floats<2> of_column(const Row& row, float g, float v) {
    return {{g * (v - row.mean) * row.scale, g}};
  }
};

/// How many vectors of N columns a thread has: as many as there are registers for, with the next row's and the sums.
template <typename Math>
constexpr int kBytes = sizeof(typename Math::G) + (Math::kAdds ? 2 : 1) * sizeof(typename Math::X);
template <typename Math, int N>
constexpr int kRegisters = N * (2 * kBytes<Math> / 4 + Math::kSums);
template <typename Math, int N>
constexpr int kVectors = N == 1                       ? 8
                         : kRegisters<Math, N> <= 24 ? 4
                         : kRegisters<Math, N> <= 40 ? 2
                                                     : 1;

/// What a thread has of a row.
template <typename Math, int N>
struct NormRow {
  typename Math::Row numbers;
  struct {
    Packed<N, typename Math::G> grad;
    Packed<N, typename Math::X> x, grad_sum;
  } at[kVectors<Math, N>];

  __device__ void fetch(const Math& math, const Member& me, int64_t row) {
    const auto& args = math.args;
    numbers = math.row(row);
    me.for_own<N, kVectors<Math, N>>(args.dim, [&](int h, int64_t i) {
      const int64_t place = row * args.dim + i;
      at[h].grad.fetch(static_cast<const typename Math::G*>(args.grad) + place);
      at[h].x.fetch(static_cast<const typename Math::X*>(args.x) + place);
      if constexpr (Math::kAdds) {
        at[h].grad_sum.fetch(static_cast<const typename Math::X*>(args.grad_sum) + place);
      }
    });
  }
};

/// A row's sums over all of its columns, of which this block has a tile: this thread's share, read from memory.
template <typename Math, int N>
__device__ Floats<Math::kSums> sums_of_wide_row(const Math& math, const typename Math::Row& numbers,
                                                int64_t row) {
  const auto& args = math.args;
  const auto* grad = static_cast<const typename Math::G*>(args.grad) + row * args.dim;
  const auto* x = static_cast<const typename Math::X*>(args.x) + row * args.dim;
  Floats<Math::kSums> sums = {};
  for (int64_t i = threadIdx.x * N; i < args.dim; i += blockDim.x * N) {
    const auto g = load<N>(grad + i), v = load<N>(x + i);
    const auto w = load<N>(static_cast<const typename Math::X*>(args.weight) + i);
    for (int k = 0; k < N; ++k) math.add(numbers, product(g[k], w[k]), v[k], sums);
  }
  return sums;
}

template <typename Math, int N>
__global__ void __launch_bounds__(kNormThreads)
    norm_grad_kernel(Math math, RowGroups groups, Teams teams, float* partial) {
  constexpr int kOwn = kVectors<Math, N>;
  using X = typename Math::X;
  const int64_t dim = math.args.dim, columns = int64_t{teams.team} * kOwn * N;
  const Part part = part_of_block(math.args.rows, groups, columns);
  const Member me(teams, part.first_column);
  const X* weight = static_cast<const X*>(math.args.weight);
  Floats<N> sums[Math::kSums][kOwn] = {};
  NormRow<Math, N> next = {};
  int64_t row = part.first_row + me.own;
  if (row < part.last_row) next.fetch(math, me, row);
  int turn = 0;
  for (int64_t first = part.first_row; first < part.last_row; first += me.rows) {
    NormRow<Math, N> own = next;
    const bool there = row < part.last_row;
    // On its way while this one is summed.
    if (row + me.rows < part.last_row) next.fetch(math, me, row + me.rows);
    Floats<Math::kSums> over_row = {};
    if (there && dim <= columns) {
      me.for_own<N, kOwn>(dim, [&](int h, int64_t i) {
        const Floats<N> w = load<N>(weight + i);
        for (int k = 0; k < N; ++k) {
          math.add(own.numbers, product(own.at[h].grad[k], w[k]), own.at[h].x[k], over_row);
        }
      });
    } else if (there) {
      over_row = sums_of_wide_row<Math, N>(math, own.numbers, row);
    }
    math.finish(own.numbers, sums_over_team(over_row, me, turn));
    turn ^= 1;
    if (there) {
      me.for_own<N, kOwn>(dim, [&](int h, int64_t i) {
        own.at[h].grad.unpack_again(), own.at[h].x.unpack_again();
        const Floats<N> w = load<N>(weight + i);
        Floats<N> result;
        for (int k = 0; k < N; ++k) {
          const float g = own.at[h].grad[k], v = own.at[h].x[k];
          result[k] = Math::kAdds ? own.at[h].grad_sum[k] : 0;
          result[k] += math.grad_x(own.numbers, product(g, w[k]), v);
          const auto of_column = math.of_column(own.numbers, g, v);
          for (int s = 0; s < Math::kSums; ++s) sums[s][h][k] += of_column[s];
        }
        store(static_cast<X*>(math.args.grad_x) + row * dim + i, result);
      });
    }
    row += me.rows;
  }
  for (int s = 0; s < Math::kSums; ++s) {
    store_sums(sums[s], me, dim, partial + (part.group * Math::kSums + s) * dim);
  }
}

// --- Sums of rows.

template <typename X, int N>
__global__ void sum_of_rows_kernel(const X* x, int64_t rows, int64_t dim, RowGroups groups,
                                   float* partial) {
  const Part part = part_of_block(rows, groups, static_cast<int64_t>(blockDim.x) * kHeld);
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
#pragma unroll 8
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

/// Groups of at least as many rows as lets `most` blocks have them.
RowGroups groups_for(int64_t rows, int64_t most) {
  const int64_t each = ceil_div(rows, most) < 1 ? 1 : ceil_div(rows, most);
  return {each, ceil_div(rows, each)};
}

template <typename Math>
void norm_grad(const Math& math, bool aligned, float* partial, float* sums, Stream stream) {
  const int64_t rows = math.args.rows, dim = math.args.dim;
  const auto groups = norm_groups_of(rows, dim);
  with_width(aligned && dim % kVector == 0, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    constexpr int kColumns = kVectors<Math, kWidth> * kWidth;
    const auto teams = teams_of(dim, kColumns);
    launch(norm_grad_kernel<Math, kWidth>,
           groups.groups * ceil_div(dim, int64_t{teams.team} * kColumns), teams.team * teams.rows,
           stream, math, groups, teams, partial);
  });
  add_groups(partial, groups.groups, Math::kSums * dim, sums, stream);
}

}  // namespace

// Both: as many blocks as the processors hold at once.
RowGroups groups_of(int64_t rows, int64_t dim) {
  const int64_t threads = threads_for(ceil_div(dim, kHeld), kMaxThreads);
  return groups_for(rows, kProcessors * (kThreadsOfProcessor / threads));
}
RowGroups norm_groups_of(int64_t rows, int64_t dim) {
  const auto teams = teams_of(dim, kNormHeld);
  const int64_t most = kProcessors * (kNormThreads / (teams.team * teams.rows));
  auto groups = groups_for(rows, most);
  groups.rows_each = ceil_div(groups.rows_each, teams.rows) * teams.rows;  // or a team would have nothing to do
  groups.groups = ceil_div(rows, groups.rows_each);
  return groups;
}

void rms_norm_grad(const RmsNormGradArgs& args, float* partial, float* sums, Stream stream) {
  const bool wide = aligned(args.grad, args.grad_sum, args.x, args.weight, args.grad_x, partial);
  with_norm_types(args.type, args.grad_type, [&](auto x, auto grad) {
    using X = decltype(x);
    using G = decltype(grad);
    args.grad_sum != nullptr
        ? norm_grad(RmsMath<X, G, true>{args}, wide, partial, sums, stream)
        : norm_grad(RmsMath<X, G, false>{args}, wide, partial, sums, stream);
  });
}

void layer_norm_grad(const LayerNormGradArgs& args, float* partial, float* sums, Stream stream) {
  const bool wide = aligned(args.grad, args.x, args.weight, args.grad_x, partial);
  with_norm_types(args.type, args.grad_type, [&](auto x, auto grad) {
    norm_grad(LayerMath<decltype(x), decltype(grad)>{args}, wide, partial, sums, stream);
  });
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
