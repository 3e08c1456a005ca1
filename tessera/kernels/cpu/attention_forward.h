// The forward half of attention_impl.h, which says what T and F are, and what both halves share.
#pragma once

#include "tessera/kernels/cpu/attention_kernel.h"
#include "tessera/kernels/cpu/attention_tiles.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kInfinity = __builtin_inff();

/// Query i sees the `window` keys up to key i + shift; with no mask every key is within the shift,
/// and without a window more than there are.
int64_t shift_of(const AttentionProblem& p) {
  return p.causal ? p.num_keys - p.num_queries : p.num_keys;
}

/// The head dimension as packed: whole vectors of steps.
template <typename F>
int64_t padded_dim(const AttentionProblem& p) {
  return round_up(p.head_dim, 16 * kDepth<F>);
}

/// Where scale * log2(e) is applied. Float queries are packed with it. Bfloat16 would round again,
/// so its queries take the sign only, which keeps the maximum of the scores the maximum.
struct Scaling {
  float queries;    // times the queries as they are packed
  float scores;     // times the products of packed queries and keys: base-2 logarithms
  float grad_keys;  // times the sums that packed queries gave: scale / queries
  float to_cap;     // with a softcap: times the products, 1 where the cap is; else 0
};
template <typename F>
Scaling plain_scaling_of(const AttentionProblem& p) {
  if (kDepth<F> == 1) return {p.scale * kLog2E, 1.0f, kLn2, 0.0f};
  if (p.scale == 0) return {0.0f, 1.0f, 0.0f, 0.0f};  // scores of zero, not of 0 * -infinity
  const float size = __builtin_fabsf(p.scale);
  return {p.scale / size, size * kLog2E, size, 0.0f};
}

/// With a softcap `scores` is what the hyperbolic tangents are multiplied by.
template <typename F>
Scaling scaling_of(const AttentionProblem& p) {
  auto scaling = plain_scaling_of<F>(p);
  if (p.softcap == 0) return scaling;
  scaling.to_cap = scaling.scores * kLn2 / p.softcap;
  scaling.scores = p.softcap * kLog2E;
  return scaling;
}

/// Turns products into hyperbolic tangents, where there is a softcap.
TESSERA_INLINE void cap(float* scores, int64_t vectors, const Scaling& scaling) {
  if (scaling.to_cap == 0) return;
  const Vec to_cap = splat(scaling.to_cap);
  for (int64_t j = 0; j < vectors * kWidth; j += kWidth) {
    store(scores + j, tanh(load(scores + j) * to_cap));
  }
}

template <typename T>
T* head_of(const AttentionView& view, int64_t batch, int64_t head) {
  return static_cast<T*>(view.data) + batch * view.batch_stride + head * view.head_stride;
}
template <typename T>
Rows<T> rows_of(const AttentionProblem& p, const AttentionView& view, int64_t tokens, int64_t batch,
                int64_t head) {
  return {head_of<T>(view, batch, head), tokens, view.token_stride, p.head_dim};
}
template <typename T>
Rows<T> queries_of(const AttentionProblem& p, const AttentionView& view, int64_t batch,
                   int64_t head) {
  return rows_of<T>(p, view, p.num_queries, batch, head);
}
template <typename T>
Rows<T> keys_of(const AttentionProblem& p, const AttentionView& view, int64_t batch, int64_t head) {
  return rows_of<T>(p, view, p.num_keys, batch, head);
}

/// A head's sink as a base-2 logarithm.
float sink_of(const AttentionProblem& p, int64_t head) {
  return p.sinks == nullptr ? -kInfinity : p.sinks[head] * kLog2E;
}

/// Hands out 64-byte aligned pieces of the worker's buffer; with no buffer it only counts.
struct Arena {
  float* base;
  int64_t used = 0;  // floats
  template <typename E = float>
  E* take(int64_t count) {
    float* piece = base == nullptr ? nullptr : base + used;
    used += round_up(count * static_cast<int64_t>(sizeof(E)), 64) / 4;
    return reinterpret_cast<E*>(piece);
  }
  /// A place for the paired copy of `plain`, which itself is one if steps are single elements.
  template <typename F>
  F* take_paired(F* plain, int64_t count) {
    return kDepth<F> == 1 ? plain : take<F>(count);
  }
};

// --- Forward.

template <typename F>
struct ForwardBuffers {
  F *keys, *values;  // K transposed [S / kBlock, E, kBlock] and V [S, E], paired
  F* queries;        // [kBlock, E]
  float* sums;       // [kBlock, E]
  float *tops,
      *totals;  // running top [kBlock], near the maximum; running sum of each vector lane [kBlock,
                // kWidth]
  float* scores;  // [kStrip, kBlock]
  F* weights;     // the same, as factors; a float's place is its score's
  Scaling scaling;
};

template <typename F>
int64_t place(const AttentionProblem& p, float* workspace, ForwardBuffers<F>& b) {
  Arena arena{workspace};
  const int64_t dim = padded_dim<F>(p), keys = round_up(p.num_keys, kBlock);
  b.keys = arena.take<F>(keys * dim);
  b.values = arena.take<F>(keys * dim);
  b.queries = arena.take<F>(kBlock * dim);
  b.sums = arena.take(kBlock * dim);
  b.tops = arena.take(kBlock);
  b.totals = arena.take(kBlock * kWidth);
  b.scores = arena.take(kStrip<F> * kBlock);
  b.weights = kDepth<F> == 1 ? reinterpret_cast<F*>(b.scores) : arena.take<F>(kStrip<F> * kBlock);
  b.scaling = scaling_of<F>(p);
  return arena.used;
}

template <typename T, typename F>
void pack_keys_and_values(const AttentionProblem& p, int64_t batch, int64_t key_head,
                          const ForwardBuffers<F>& b) {
  const int64_t dim = padded_dim<F>(p);
  const auto k = keys_of<T>(p, p.k, batch, key_head), v = keys_of<T>(p, p.v, batch, key_head);
  for (int64_t begin = 0; begin < p.num_keys; begin += kBlock) {
    const int64_t rows = min_of(kBlock, p.num_keys - begin);
    // The values' place holds the keys' rows until they are transposed.
    pack_rows(k, begin, rows, 1.0f, b.values + begin * dim, dim);
    transpose_block(b.values + begin * dim, dim, b.keys + begin * dim);
    pack_paired(v, begin, rows, 1.0f, b.values + begin * dim, dim);
  }
}

/// How far above the top the maximum may be before the top moves to it. Weights so stay below
/// 2^kSlack, and a row's sums are seldom rescaled after its first tile: no branch is mispredicted.
/// None for bfloat16, in which the largest weight, then 2^0, is exact.
template <typename F>
constexpr float kSlack = kDepth<F> == 1 ? 8.0f : 0.0f;

/// Turns one row of scores into weights 2^(scale * score - top), and rescales the row's sums where
/// the top moves.
template <typename F>
TESSERA_INLINE void soften_row(const float* scores, F* weights, int64_t vectors, float scale,
                               float* top, float* total, float* sums, int64_t dim) {
  Vec highest = load(scores);
  for (int64_t j = 1; j < vectors; ++j) highest = max(load(scores + j * kWidth), highest);
  const float candidate = highest_of(highest) * scale;
  Vec lanes = load(total);
  if (candidate > *top + kSlack<F>) {
    const Vec decay = exp2_of(splat(*top - candidate));
    lanes *= decay;
    for (int64_t d = 0; d < dim; d += kWidth) store(sums + d, load(sums + d) * decay);
    *top = candidate;
  }
  const Vec base = splat(*top);
  for (int64_t j = 0; j < vectors * kWidth; j += kWidth * kDepth<F>) {
    Vec piece[kDepth<F>];
    for (int64_t i = 0; i < kDepth<F>; ++i) {
      piece[i] = exp2_of(load(scores + j + i * kWidth) * scale - base);
    }
    lanes = store_and_add(weights + j, piece, lanes);
  }
  store(total, lanes);
}

/// One block of queries, from row `first`, against the keys of block `key_begin`.
template <typename F>
void forward_tile(const AttentionProblem& p, int64_t first, int64_t key_begin,
                  const ForwardBuffers<F>& b) {
  const int64_t dim = padded_dim<F>(p), shift = shift_of(p);
  const int64_t rows = round_up(min_of(kBlock, p.num_queries - first), kStrip<F>);
  const int64_t keys = min_of(kBlock, p.num_keys - key_begin);
  for (int64_t r = 0; r < rows; r += kStrip<F>) {
    // Row r sees the block's keys hidden .. seen - 1.
    const int64_t seen = first + r + shift - key_begin + 1, hidden = seen - p.window;
    const int64_t columns = min_of(keys, seen + kStrip<F> - 1);
    if (columns <= 0 || hidden >= keys) continue;
    const int64_t vectors = round_up(columns, kWidth * kDepth<F>) / kWidth;
    multiply<false>(Left<F>{b.queries + r * dim, dim, kDepth<F>}, dim, b.keys + key_begin * dim,
                    kBlock, b.scores, kBlock, vectors);
    for (int64_t i = 0; i < min_of(kStrip<F>, p.num_queries - first - r); ++i) {
      float* scores = b.scores + i * kBlock;
      cap(scores, vectors, b.scaling);
      F* weights = b.weights + i * kBlock;
      const int64_t end = max_of(0, min_of(keys, seen + i)), begin = min_of(hidden + i, end);
      for (int64_t j = end; j < vectors * kWidth; ++j) scores[j] = -kInfinity;
      for (int64_t j = 0; j < begin; ++j) scores[j] = -kInfinity;
      // Another row of the strip sees a key, this one none: weights of zero.
      if (end == 0 || begin == end) {
        for (int64_t j = 0; j < vectors; ++j) store(weights + j * kWidth, Vec{});
        continue;
      }
      const int64_t row = r + i;
      soften_row(scores, weights, vectors, b.scaling.scores, b.tops + row, b.totals + row * kWidth,
                 b.sums + row * dim, dim);
    }
    multiply<true>(Left<F>{b.weights, kBlock, kDepth<F>}, columns, b.values + key_begin * dim, dim,
                   b.sums + r * dim, dim, dim / kWidth);
  }
}

template <typename T, typename F>
void forward_head(const AttentionProblem& p, int64_t batch, int64_t head,
                  const ForwardBuffers<F>& b) {
  const int64_t dim = padded_dim<F>(p);
  const auto q = queries_of<T>(p, p.q, batch, head);
  T* out = head_of<T>(p.out, batch, head);
  float* log_sum_exp = p.log_sum_exp + (batch * p.heads + head) * p.num_queries;
  // A sink is a key that was seen before all others, whose weight is 1 and whose value is 0.
  const float sink = sink_of(p, head);
  Vec total_before{};
  if (p.sinks != nullptr) total_before[0] = 1;
  for (int64_t first = 0; first < p.num_queries; first += kBlock) {
    const int64_t rows = min_of(kBlock, p.num_queries - first);
    pack_rows(q, first, rows, b.scaling.queries, b.queries, dim);
    for (int64_t i = 0; i < kBlock * dim; i += kWidth) store(b.sums + i, Vec{});
    for (int64_t i = 0; i < kBlock; ++i) {
      b.tops[i] = sink;
      store(b.totals + i * kWidth, total_before);
    }
    const int64_t key_end = min_of(p.num_keys, first + rows + shift_of(p));
    const int64_t first_key = max_of(0, first + shift_of(p) - p.window + 1) / kBlock * kBlock;
    for (int64_t begin = first_key; begin < key_end; begin += kBlock) {
      forward_tile(p, first, begin, b);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float total = sum_of(load(b.totals + r * kWidth));
      unpack_row(b.sums + r * dim, p.head_dim, 1.0f / total,
                 out + (first + r) * p.out.token_stride);
      log_sum_exp[first + r] = b.tops[r] * kLn2 + __builtin_logf(total);
    }
  }
}

template <typename T>
void forward_range(const AttentionProblem& p, int64_t begin, int64_t end, float* workspace) {
  const TileScope scope;
  ForwardBuffers<Factor<T>> buffers;
  place(p, workspace, buffers);
  const int64_t group = p.heads / p.key_heads;
  for (int64_t index = begin; index < end; ++index) {
    const int64_t batch = index / p.heads, head = index % p.heads;
    if (index == begin || head % group == 0) {
      pack_keys_and_values<T>(p, batch, head / group, buffers);
    }
    forward_head<T>(p, batch, head, buffers);
  }
}

}  // namespace
}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
