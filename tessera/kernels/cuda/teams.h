// Rows of norms' gradients: a block has some at a time, each of a team of threads of its own, so that a barrier serves them all.
#pragma once

#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {

inline constexpr int kNormThreads = 512;  // of an SM: a thread has many registers
inline constexpr int kNormHeld = 32;      // columns of a thread, of 16 bits
inline constexpr int kRowThreads = 256;   // of a block, if rows are shorter than these hold

/// How a block takes rows.
struct Teams {
  int team;  ///< threads of a row
  int rows;  ///< at a time
};
inline Teams teams_of(int64_t dim, int held) {
  const int team = threads_for(ceil_div(dim, held), kNormThreads);
  // More than one row only of those that a team has whole.
  return {team, team < kRowThreads ? kRowThreads / team : 1};
}

/// A thread's place in its block: `lane` of the team that has row `own` of those at a time.
struct Member {
  int team, rows, own, lane;
  int64_t first_column;

  __device__ Member(const Teams& teams, int64_t column)
      : team(teams.team),
        rows(teams.rows),
        own(static_cast<int>(threadIdx.x) / teams.team),
        lane(static_cast<int>(threadIdx.x) % teams.team),
        first_column(column) {}

  /// body(h, i) for the columns [i, i + N) that this thread has, in place h: a constant apart, which takes fewer registers for
  /// addresses than if all of the team's threads lay between.
  template <int N, int kOwn, typename Body>
  __device__ void for_own(int64_t dim, Body body) const {
    const int start =
        static_cast<int>(first_column) + (lane / kWarp * kOwn * kWarp + lane % kWarp) * N;
    const int left = static_cast<int>(dim) - start;
#pragma unroll
    for (int h = 0; h < kOwn; ++h) {
      if (h * kWarp * N < left) body(h, start + h * kWarp * N);
    }
  }
};

/// `values` of a team's threads summed, given to each of them. All of the block call it; `turn` is 0 and 1 in turn, so that
/// one barrier a call is enough.
template <int kCount>
__device__ Floats<kCount> sums_over_team(Floats<kCount> values, const Member& me, int turn) {
  __shared__ Floats<kCount> of_warps[2][kNormThreads / kWarp];
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    for (int k = 0; k < kCount; ++k) values[k] += from_lane_xor(values[k], mask);
  }
  if (me.team == kWarp) return values;
  const int warps = me.team / kWarp, first = me.own * warps;
  if (me.lane % kWarp == 0) of_warps[turn][first + me.lane / kWarp] = values;
  __syncthreads();
  values = of_warps[turn][first];
#pragma unroll 4
  for (int warp = 1; warp < warps; ++warp) {
    const Floats<kCount> other = of_warps[turn][first + warp];
    for (int k = 0; k < kCount; ++k) values[k] += other[k];
  }
  return values;
}

template <int N>
__device__ void add_to(Floats<N>& sums, const Floats<N>& values) {
  for (int k = 0; k < N; ++k) sums[k] += values[k];
}

/// What the teams of a block summed for their columns, added in their order, to `to`.
template <int N, int kOwn>
__device__ void store_sums(Floats<N> (&sums)[kOwn], const Member& me, int64_t dim, float* to) {
  alignas(16) __shared__ float of_team[kRowThreads / 2 * kNormHeld];
  for (int other = 1; other < me.rows; ++other) {
    __syncthreads();
    me.for_own<N, kOwn>(dim, [&](int h, int64_t i) {
      if (me.own == other) store(of_team + i, sums[h]);
    });
    __syncthreads();
    me.for_own<N, kOwn>(dim, [&](int h, int64_t i) {
      if (me.own == 0) add_to(sums[h], load<N>(of_team + i));
    });
  }
  if (me.own == 0) {
    me.for_own<N, kOwn>(dim, [&](int h, int64_t i) { store(to + i, sums[h]); });
  }
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
