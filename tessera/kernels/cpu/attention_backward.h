// The backward half of attention_impl.h, which says what T and F are.
#pragma once

#include "tessera/kernels/cpu/attention_forward.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {
namespace {

template <typename F>
struct BackwardBuffers {
  F *queries, *grad_outs;                  // [T, E]
  F *queries_paired, *grad_outs_paired;    // the same
  float* grad_queries;                     // [T, E]
  float *log_sums, *deltas;                // [T]: log2 of the sum of 2^score; sum of grad_out * out
  float *grad_keys, *grad_values;          // [S, E]
  F* keys;                                 // [kBlock, E], plain until transposed, then paired
  F *keys_across, *values_across;          // [E, kBlock], paired
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
  b.scores = arena.take(kStrip<F> * kBlock);
  b.grad_weights = arena.take(kStrip<F> * kBlock);
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
  const int64_t columns = min_of(keys, seen + kStrip<F> - 1);
  const int64_t vectors = round_up(columns, kWidth) / kWidth;
  multiply<false>(Left<F>{b.queries + (first + r) * dim, dim, kDepth<F>}, dim, b.keys_across,
                  kBlock, b.scores, kBlock, vectors);
  for (int64_t i = 0; i < kStrip<F>; ++i) cap(b.scores + i * kBlock, vectors, b.scaling);
  multiply<false>(Left<F>{b.grad_outs + (first + r) * dim, dim, kDepth<F>}, dim, b.values_across,
                  kBlock, b.grad_weights, kBlock, vectors);
  const int64_t end = min_of(kBlock, round_up(columns + kStrip<F>, kWidth));
  for (int64_t row = 0; row < kStrip<F>; row += kDepth<F>) {
    for (int64_t j = 0; j < end; j += kWidth) {
      Vec weights[kDepth<F>], grads[kDepth<F>];
      for (int64_t i = 0; i < kDepth<F>; ++i) {
        const int64_t t = first + r + row + i, at = (row + i) * kBlock + j;
        const int64_t visible = min_of(keys, seen + row + i) - j;
        const int64_t hidden = seen - p.window + row + i - j;
        const Vec score = load(b.scores + at);
        weights[i] = exp2_of(score * b.scaling.scores - b.log_sums[t]);
        grads[i] = weights[i] * (load(b.grad_weights + at) - b.deltas[t]);
        if (b.scaling.to_cap != 0) grads[i] *= splat(1.0f) - score * score;
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
  const int64_t rows = round_up(min_of(kBlock, p.num_queries - first), kStrip<F>);
  const int64_t keys = min_of(kBlock, p.num_keys - key_begin);
  const int64_t distance =
      first + shift_of(p) - key_begin;  // the tile's row r sees its keys up to r + distance
  for (int64_t r = 0; r < rows; r += kStrip<F>) {
    const int64_t seen = r + distance + 1;
    const int64_t columns = min_of(keys, seen + kStrip<F> - 1);
    if (columns <= 0 || seen - p.window >= keys) continue;
    backward_strip(p, first, r, seen, keys, b);
    multiply<true>(Left<F>{b.grad_scores + r * kBlock, kBlock, kDepth<F>}, columns, b.keys, dim,
                   b.grad_queries + (first + r) * dim, dim, vectors);
  }
  for (int64_t j = 0; j < keys; j += kStrip<F>) {
    // From the first row that sees key j, or the one before it, to the last that sees a key of the
    // strip, or the one after it: steps are taken whole.
    const int64_t from = max_of(0, j - distance) / kDepth<F> * kDepth<F>;
    const int64_t last_key = min_of(j + kStrip<F>, keys) - 1;
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
  const TileScope scope;
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

}  // namespace
}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
