// Attention of one query to a head, as where a text is made token by token. Its time is that of reading
// keys and values once, so they are read where they lie, by all heads that share them: nothing is
// packed. Part of attention_impl.h, which says what T is.
#pragma once

#include "tessera/kernels/cpu/attention_forward.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {
namespace {

/// Heads of one key head that are taken together; so few that their buffers fit where those of a
/// block of queries would.
constexpr int64_t kHeadsAtOnce = 8;

struct OneQueryBuffers {
  float *queries, *sums;  // [kHeadsAtOnce, E]
  float* scores;          // [kHeadsAtOnce, S], then the weights
  int64_t dim, keys;      // E and S in whole vectors
};

int64_t place(const AttentionProblem& p, float* workspace, OneQueryBuffers& b) {
  Arena arena{workspace};
  b.dim = round_up(p.head_dim, kWidth), b.keys = round_up(p.num_keys, kWidth);
  b.queries = arena.take(kHeadsAtOnce * b.dim);
  b.sums = arena.take(kHeadsAtOnce * b.dim);
  b.scores = arena.take(kHeadsAtOnce * b.keys);
  return arena.used;
}

/// Turns products into weights 2^(score - top) and returns the log-sum-exp; the weights' sum in
/// `total`, that of the sink included.
TESSERA_INLINE float soften(const AttentionProblem& p, float sink, float* scores, int64_t keys,
                            float* total) {
  for (int64_t j = keys; j < round_up(keys, kWidth); ++j) scores[j] = 0;
  const bool caps = p.softcap != 0;
  const float inner = caps ? p.scale / p.softcap : p.scale * kLog2E, outer = p.softcap * kLog2E;
  Vec highest = splat(sink);
  for (int64_t j = 0; j < keys; j += kWidth) {
    Vec score = load(scores + j) * inner;
    if (caps) score = tanh(score) * outer;
    if (j + kWidth > keys) score = score - without_first(splat(kInfinity), keys - j);
    store(scores + j, score);
    highest = max(score, highest);
  }
  const float top = highest_of(highest);
  Vec lanes = {};
  for (int64_t j = 0; j < keys; j += kWidth) {
    const Vec weight = exp2_of(load(scores + j) - splat(top));
    store(scores + j, weight);
    lanes += weight;
  }
  *total = sum_of(lanes) + exp2_of(splat(sink - top))[0];
  return top * kLn2 + __builtin_logf(*total);
}

/// Adds the values of N keys from `key` on, times their weights, to the sums of `heads`.
template <int N, typename T>
TESSERA_INLINE void add_values(const Rows<T>& v, int64_t key, const float* weights, int64_t heads,
                               const OneQueryBuffers& b) {
  for (int64_t h = 0; h < heads; ++h) {
    float* sums = b.sums + h * b.dim;
    for_each_vector(
        0, v.dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
          Vec sum = load(sums + i);
          for (int n = 0; n < N; ++n) {
            sum += part.load(v.data + (key + n) * v.stride + i) * weights[h * b.keys + n];
          }
          store(sums + i, sum);
        });
  }
}

/// Heads [head, head + heads), which share keys and values.
template <typename T>
void forward_heads(const AttentionProblem& p, int64_t batch, int64_t head, int64_t heads,
                   const OneQueryBuffers& b) {
  const int64_t key_head = head / (p.heads / p.key_heads);
  const auto k = keys_of<T>(p, p.k, batch, key_head), v = keys_of<T>(p, p.v, batch, key_head);
  const int64_t first = max_of(0, p.causal ? p.num_keys - p.window : 0), seen = p.num_keys - first;
  for (int64_t h = 0; h < heads; ++h) {
    const T* query = head_of<T>(p.q, batch, head + h);
    for_each_vector(
        0, p.head_dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
          store(b.queries + h * b.dim + i, part.load(query + i));
          store(b.sums + h * b.dim + i, Vec{});
        });
  }
  for (int64_t key = 0; key < seen; ++key) {
    const T* row = k.data + (first + key) * k.stride;
    for (int64_t h = 0; h < heads; ++h) {
      Vec dots = {};
      for_each_vector(
          0, p.head_dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
            dots += part.load(row + i) * load(b.queries + h * b.dim + i);
          });
      b.scores[h * b.keys + key] = sum_of(dots);
    }
  }
  float totals[kHeadsAtOnce];
  for (int64_t h = 0; h < heads; ++h) {
    p.log_sum_exp[batch * p.heads + head + h] =
        soften(p, sink_of(p, head + h), b.scores + h * b.keys, seen, totals + h);
  }
  constexpr int kKeysAtOnce = 4;
  int64_t key = 0;
  for (; key + kKeysAtOnce <= seen; key += kKeysAtOnce) {
    add_values<kKeysAtOnce>(v, first + key, b.scores + key, heads, b);
  }
  for (; key < seen; ++key) add_values<1>(v, first + key, b.scores + key, heads, b);
  for (int64_t h = 0; h < heads; ++h) {
    unpack_row(b.sums + h * b.dim, p.head_dim, 1.0f / totals[h],
               head_of<T>(p.out, batch, head + h));
  }
}

/// Flat indices batch * heads + head in [begin, end).
template <typename T>
void forward_one_query(const AttentionProblem& p, int64_t begin, int64_t end, float* workspace) {
  OneQueryBuffers buffers;
  place(p, workspace, buffers);
  const int64_t group = p.heads / p.key_heads;
  for (int64_t index = begin; index < end;) {
    const int64_t head = index % p.heads;
    const int64_t left = min_of(end - index, group - head % group);
    const int64_t heads = min_of(left, kHeadsAtOnce);
    forward_heads<T>(p, index / p.heads, head, heads, buffers);
    index += heads;
  }
}

}  // namespace
}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
