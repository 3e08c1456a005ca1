// Attention over tiles of kBlock queries and kBlock keys (Dao, FlashAttention-2, 2023, algorithms 1
// and 2). Every product is a tile's rows (broadcast step by step) times rows of vectors. The tiles
// hold base-2 logarithms and exp is 2^x.
//
// T is the tensors' element, F what is multiplied (attention_tiles.h). With bfloat16 factors the
// weights and their gradients are rounded to bfloat16 before they are multiplied; scores, sums, the
// running maximum and the log-sum-exp are floats.
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
};
template <typename F>
Scaling scaling_of(const AttentionProblem& p) {
  if (kDepth<F> == 1) return {p.scale * kLog2E, 1.0f, kLn2};
  if (p.scale == 0) return {0.0f, 1.0f, 0.0f};  // scores of zero, not of 0 * -infinity
  const float size = __builtin_fabsf(p.scale);
  return {p.scale / size, size * kLog2E, size};
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
  F *keys, *values;  // K transposed [S / kBlock, D, kBlock] and V [S, D], paired
  F* queries;        // [kBlock, D]
  float* sums;       // [kBlock, D]
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
  b.scores = arena.take(kStrip * kBlock);
  b.weights = kDepth<F> == 1 ? reinterpret_cast<F*>(b.scores) : arena.take<F>(kStrip * kBlock);
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
  const int64_t rows = round_up(min_of(kBlock, p.num_queries - first), kStrip);
  const int64_t keys = min_of(kBlock, p.num_keys - key_begin);
  for (int64_t r = 0; r < rows; r += kStrip) {
    // Row r sees the block's keys hidden .. seen - 1.
    const int64_t seen = first + r + shift - key_begin + 1, hidden = seen - p.window;
    const int64_t columns = min_of(keys, seen + kStrip - 1);
    if (columns <= 0 || hidden >= keys) continue;
    const int64_t vectors = round_up(columns, kWidth * kDepth<F>) / kWidth;
    multiply<false>(Left<F>{b.queries + r * dim, dim, kDepth<F>}, dim, b.keys + key_begin * dim,
                    kBlock, b.scores, kBlock, vectors);
    for (int64_t i = 0; i < kStrip; ++i) {
      float* scores = b.scores + i * kBlock;
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
  for (int64_t first = 0; first < p.num_queries; first += kBlock) {
    const int64_t rows = min_of(kBlock, p.num_queries - first);
    pack_rows(q, first, rows, b.scaling.queries, b.queries, dim);
    for (int64_t i = 0; i < kBlock * dim; i += kWidth) store(b.sums + i, Vec{});
    for (int64_t i = 0; i < kBlock; ++i) {
      b.tops[i] = -kInfinity;
      store(b.totals + i * kWidth, Vec{});
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

// --- Backward.

template <typename F>
struct BackwardBuffers {
  F *queries, *grad_outs;                  // [T, D]
  F *queries_paired, *grad_outs_paired;    // the same
  float* grad_queries;                     // [T, D]
  float *log_sums, *deltas;                // [T]: log2 of the sum of 2^score; sum of grad_out * out
  float *grad_keys, *grad_values;          // [S, D]
  F* keys;                                 // [kBlock, D], plain until transposed, then paired
  F *keys_across, *values_across;          // [D, kBlock], paired
  float *scores, *grad_weights;            // [kStrip, kBlock]
  F* grad_scores;                          // [kBlock, kBlock]
  F *weights_paired, *grad_scores_paired;  // [kBlock, kBlock]
  Scaling scaling;
};

template <typename F>
int64_t place(const AttentionProblem& p, float* workspace, BackwardBuffers<F>& b) {
  Arena arena{workspace};
  const int64_t dim = padded_dim<F>(p);
  const int64_t queries = round_up(p.num_queries, kBlock), keys = round_up(p.num_keys, kBlock);
  b.queries = arena.take<F>(queries * dim);
  b.grad_outs = arena.take<F>(queries * dim);
  b.queries_paired = arena.take_paired(b.queries, queries * dim);
  b.grad_outs_paired = arena.take_paired(b.grad_outs, queries * dim);
  b.grad_queries = arena.take(queries * dim);
  b.log_sums = arena.take(queries);
  b.deltas = arena.take(queries);
  b.grad_keys = arena.take(keys * dim);
  b.grad_values = arena.take(keys * dim);
  b.keys = arena.take<F>(kBlock * dim);
  b.keys_across = arena.take<F>(kBlock * dim);
  b.values_across = arena.take<F>(kBlock * dim);
  b.scores = arena.take(kStrip * kBlock);
  b.grad_weights = arena.take(kStrip * kBlock);
  b.grad_scores = arena.take<F>(kBlock * kBlock);
  b.grad_scores_paired = arena.take_paired(b.grad_scores, kBlock * kBlock);
  b.weights_paired = arena.take<F>(kBlock * kBlock);
  b.scaling = scaling_of<F>(p);
  return arena.used;
}

/// Packs one head's queries and output gradients and finds deltas; rows past the last get a weight
/// of 2^-inf.
template <typename T, typename F>
void pack_queries(const AttentionProblem& p, int64_t batch, int64_t head,
                  const BackwardBuffers<F>& b) {
  const int64_t dim = padded_dim<F>(p), padded = round_up(p.num_queries, kBlock);
  const auto q = queries_of<T>(p, p.q, batch, head), out = queries_of<T>(p, p.out, batch, head);
  const auto grad_out = queries_of<T>(p, p.grad_out, batch, head);
  const float* log_sum_exp = p.log_sum_exp + (batch * p.heads + head) * p.num_queries;
  pack_rows(q, 0, p.num_queries, b.scaling.queries, b.queries, dim);
  pack_rows(grad_out, 0, p.num_queries, 1.0f, b.grad_outs, dim);
  if (kDepth < F >> 1) {
    pack_paired(q, 0, p.num_queries, b.scaling.queries, b.queries_paired, dim);
    pack_paired(grad_out, 0, p.num_queries, 1.0f, b.grad_outs_paired, dim);
  }
  for (int64_t i = 0; i < padded * dim; i += kWidth) store(b.grad_queries + i, Vec{});
  for (int64_t t = 0; t < padded; ++t) {
    b.log_sums[t] = t < p.num_queries ? log_sum_exp[t] * kLog2E : kInfinity;
    Vec delta{};
    for (int64_t d = 0; t < p.num_queries && d < p.head_dim; d += kWidth) {
      delta += load_row(out, t, d) * load_row(grad_out, t, d);
    }
    b.deltas[t] = sum_of(delta);
  }
}

/// Weights and score gradients of the strip from row `r` of a tile: columns that a row does not see
/// are zero, as far as the products of backward_tile reach.
template <typename F>
void backward_strip(const AttentionProblem& p, int64_t first, int64_t r, int64_t seen, int64_t keys,
                    const BackwardBuffers<F>& b) {
  const int64_t dim = padded_dim<F>(p);
  const int64_t columns = min_of(keys, seen + kStrip - 1);
  const int64_t vectors = round_up(columns, kWidth) / kWidth;
  multiply<false>(Left<F>{b.queries + (first + r) * dim, dim, kDepth<F>}, dim, b.keys_across,
                  kBlock, b.scores, kBlock, vectors);
  multiply<false>(Left<F>{b.grad_outs + (first + r) * dim, dim, kDepth<F>}, dim, b.values_across,
                  kBlock, b.grad_weights, kBlock, vectors);
  const int64_t end = min_of(kBlock, round_up(columns + kStrip, kWidth));
  for (int64_t row = 0; row < kStrip; row += kDepth<F>) {
    for (int64_t j = 0; j < end; j += kWidth) {
      Vec weights[kDepth<F>], grads[kDepth<F>];
      for (int64_t i = 0; i < kDepth<F>; ++i) {
        const int64_t t = first + r + row + i, at = (row + i) * kBlock + j;
        const int64_t visible = min_of(keys, seen + row + i) - j;
        const int64_t hidden = seen - p.window + row + i - j;
        weights[i] = exp2_of(load(b.scores + at) * b.scaling.scores - b.log_sums[t]);
        grads[i] = weights[i] * (load(b.grad_weights + at) - b.deltas[t]);
        if (visible < kWidth) {
          weights[i] = first_of(weights[i], visible);
          grads[i] = first_of(grads[i], visible);
        }
        if (hidden > 0) {
          weights[i] = without_first(weights[i], hidden);
          grads[i] = without_first(grads[i], hidden);
        }
        store(b.grad_scores + r * kBlock + at, grads[i]);
      }
      const int64_t step = (r + row) * kBlock + j * kDepth<F>;
      store_paired(b.weights_paired + step, weights);
      if (kDepth < F >> 1) store_paired(b.grad_scores_paired + step, grads);
    }
  }
}

/// One tile: adds to grad_queries of its rows, grad_keys and grad_values of its columns.
template <typename F>
void backward_tile(const AttentionProblem& p, int64_t first, int64_t key_begin,
                   const BackwardBuffers<F>& b) {
  const int64_t dim = padded_dim<F>(p), vectors = dim / kWidth;
  const int64_t rows = round_up(min_of(kBlock, p.num_queries - first), kStrip);
  const int64_t keys = min_of(kBlock, p.num_keys - key_begin);
  const int64_t distance =
      first + shift_of(p) - key_begin;  // the tile's row r sees its keys up to r + distance
  for (int64_t r = 0; r < rows; r += kStrip) {
    const int64_t seen = r + distance + 1;
    const int64_t columns = min_of(keys, seen + kStrip - 1);
    if (columns <= 0 || seen - p.window >= keys) continue;
    backward_strip(p, first, r, seen, keys, b);
    multiply<true>(Left<F>{b.grad_scores + r * kBlock, kBlock, kDepth<F>}, columns, b.keys, dim,
                   b.grad_queries + (first + r) * dim, dim, vectors);
  }
  for (int64_t j = 0; j < keys; j += kStrip) {
    // From the first row that sees key j, or the one before it, to the last that sees a key of the
    // strip, or the one after it: steps are taken whole.
    const int64_t from = max_of(0, j - distance) / kDepth<F> * kDepth<F>;
    const int64_t last_key = min_of(j + kStrip, keys) - 1;
    const int64_t to = min_of(rows, round_up(last_key - distance + p.window, kDepth<F>));
    const int64_t depth = to - from, at = from * kBlock + j * kDepth<F>;
    if (from >= rows) break;
    if (depth <= 0) continue;
    const int64_t down = kBlock * kDepth<F>, row = (first + from) * dim, key = key_begin + j;
    multiply<true>(Left<F>{b.weights_paired + at, kDepth<F>, down}, depth, b.grad_outs_paired + row,
                   dim, b.grad_values + key * dim, dim, vectors);
    multiply<true>(Left<F>{b.grad_scores_paired + at, kDepth<F>, down}, depth,
                   b.queries_paired + row, dim, b.grad_keys + key * dim, dim, vectors);
  }
}

template <typename T, typename F>
void backward_head(const AttentionProblem& p, int64_t batch, int64_t head,
                   const BackwardBuffers<F>& b) {
  const int64_t dim = padded_dim<F>(p), key_head = head / (p.heads / p.key_heads);
  const auto k = keys_of<T>(p, p.k, batch, key_head), v = keys_of<T>(p, p.v, batch, key_head);
  pack_queries<T>(p, batch, head, b);
  for (int64_t begin = 0; begin < p.num_keys; begin += kBlock) {
    const int64_t keys = min_of(kBlock, p.num_keys - begin);
    pack_rows(v, begin, keys, 1.0f, b.keys, dim);
    transpose_block(b.keys, dim, b.values_across);
    pack_rows(k, begin, keys, 1.0f, b.keys, dim);
    transpose_block(b.keys, dim, b.keys_across);
    if (kDepth < F >> 1) pack_paired(k, begin, keys, 1.0f, b.keys, dim);
    const int64_t first_query = max_of(0, begin - shift_of(p)) / kBlock * kBlock;
    const int64_t end = min_of(p.num_queries, begin + keys - 1 - shift_of(p) + p.window);
    for (int64_t first = first_query; first < end; first += kBlock) {
      backward_tile(p, first, begin, b);
    }
  }
  T* grad_q = head_of<T>(p.grad_q, batch, head);
  for (int64_t t = 0; t < p.num_queries; ++t) {
    unpack_row(b.grad_queries + t * dim, p.head_dim, p.scale, grad_q + t * p.grad_q.token_stride);
  }
}

template <typename T>
void backward_range(const AttentionProblem& p, int64_t begin, int64_t end, float* workspace) {
  BackwardBuffers<Factor<T>> b;
  place(p, workspace, b);
  const int64_t dim = padded_dim<Factor<T>>(p), group = p.heads / p.key_heads;
  for (int64_t index = begin; index < end; ++index) {
    const int64_t batch = index / p.key_heads, key_head = index % p.key_heads;
    for (int64_t i = 0; i < round_up(p.num_keys, kBlock) * dim; i += kWidth) {
      store(b.grad_keys + i, Vec{});
      store(b.grad_values + i, Vec{});
    }
    for (int64_t h = 0; h < group; ++h) backward_head<T>(p, batch, key_head * group + h, b);
    T* grad_k = head_of<T>(p.grad_k, batch, key_head);
    T* grad_v = head_of<T>(p.grad_v, batch, key_head);
    for (int64_t s = 0; s < p.num_keys; ++s) {
      unpack_row(b.grad_keys + s * dim, p.head_dim, b.scaling.grad_keys,
                 grad_k + s * p.grad_k.token_stride);
      unpack_row(b.grad_values + s * dim, p.head_dim, 1.0f, grad_v + s * p.grad_v.token_stride);
    }
  }
}

int64_t forward_workspace(const AttentionProblem& p) {
  const auto count = [&](auto buffers) { return place(p, nullptr, buffers); };
  return p.bfloat16 ? count(ForwardBuffers<Factor<Bf16>>{}) : count(ForwardBuffers<float>{});
}
int64_t backward_workspace(const AttentionProblem& p) {
  const auto count = [&](auto buffers) { return place(p, nullptr, buffers); };
  return p.bfloat16 ? count(BackwardBuffers<Factor<Bf16>>{}) : count(BackwardBuffers<float>{});
}
void forward(const AttentionProblem& p, int64_t begin, int64_t end, float* workspace) {
  (p.bfloat16 ? forward_range<Bf16> : forward_range<float>)(p, begin, end, workspace);
}
void backward(const AttentionProblem& p, int64_t begin, int64_t end, float* workspace) {
  (p.bfloat16 ? backward_range<Bf16> : backward_range<float>)(p, begin, end, workspace);
}

}  // namespace

const AttentionTable attention_table = {forward_workspace, forward, backward_workspace, backward};

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
