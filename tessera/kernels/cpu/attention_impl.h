// Attention over tiles of kBlock queries and kBlock keys (Dao, FlashAttention-2, 2023, algorithms 1
// and 2). Every product is a tile's rows (broadcast element by element) times rows of vectors, so
// only K and V need transposing. Q is packed times scale * log2(e): the tiles hold base-2
// logarithms and exp is 2^x.
#pragma once

#include "tessera/kernels/cpu/attention_kernel.h"
#include "tessera/kernels/cpu/attention_tiles.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kInfinity = __builtin_inff();

/// Query i sees keys 0 .. i + shift; with no mask every key is within the shift.
int64_t shift_of(const AttentionProblem& p) {
  return p.causal ? p.num_keys - p.num_queries : p.num_keys;
}
int64_t padded_dim(const AttentionProblem& p) { return round_up(p.head_dim, 16); }

template <typename T>
T* head_of(const AttentionView& view, int64_t batch, int64_t head) {
  return static_cast<T*>(view.data) + batch * view.batch_stride + head * view.head_stride;
}

/// Hands out 64-byte aligned pieces of the worker's buffer; with no buffer it only counts.
struct Arena {
  float* base;
  int64_t used = 0;
  float* take(int64_t floats) {
    float* piece = base == nullptr ? nullptr : base + used;
    used += round_up(floats, 16);
    return piece;
  }
};

// --- Forward.

struct ForwardBuffers {
  float *keys, *values;   // K transposed [S / kBlock, D, kBlock]; V [S, D]
  float *queries, *sums;  // [kBlock, D]
  float *tops,
      *totals;    // running maximum [kBlock]; running sum of each vector lane [kBlock, kWidth]
  float* scores;  // [kStrip, kBlock]
};

int64_t place(const AttentionProblem& p, float* workspace, ForwardBuffers& b) {
  Arena arena{workspace};
  const int64_t dim = padded_dim(p), keys = round_up(p.num_keys, kBlock);
  b.keys = arena.take(keys * dim);
  b.values = arena.take(keys * dim);
  b.queries = arena.take(kBlock * dim);
  b.sums = arena.take(kBlock * dim);
  b.tops = arena.take(kBlock);
  b.totals = arena.take(kBlock * kWidth);
  b.scores = arena.take(kStrip * kBlock);
  return arena.used;
}

template <typename T>
void pack_keys_and_values(const AttentionProblem& p, int64_t batch, int64_t key_head,
                          const ForwardBuffers& b) {
  const int64_t dim = padded_dim(p);
  const T* k = head_of<T>(p.k, batch, key_head);
  const T* v = head_of<T>(p.v, batch, key_head);
  for (int64_t begin = 0; begin < p.num_keys; begin += kBlock) {
    const int64_t rows = min_of(kBlock, p.num_keys - begin);
    // The values' place holds the keys' rows until they are transposed.
    pack_rows(k, p.k.token_stride, begin, rows, p.head_dim, 1.0f, b.values + begin * dim, dim);
    transpose_block(b.values + begin * dim, dim, b.keys + begin * dim);
    pack_rows(v, p.v.token_stride, begin, rows, p.head_dim, 1.0f, b.values + begin * dim, dim);
  }
}

/// Turns one row of scores into 2^(score - maximum), and rescales the row's sums if the maximum
/// rose.
TESSERA_INLINE void soften_row(float* scores, int64_t vectors, float* top, float* total,
                               float* sums, int64_t dim) {
  Vec highest = load(scores);
  for (int64_t j = 1; j < vectors; ++j) highest = max(load(scores + j * kWidth), highest);
  const float candidate = max_of(highest);
  Vec lanes = load(total);
  if (candidate > *top) {
    const Vec decay = exp2_of(splat(*top - candidate));
    lanes *= decay;
    for (int64_t d = 0; d < dim; d += kWidth) store(sums + d, load(sums + d) * decay);
    *top = candidate;
  }
  const Vec base = splat(*top);
  for (int64_t j = 0; j < vectors; ++j) {
    const Vec weight = exp2_of(load(scores + j * kWidth) - base);
    store(scores + j * kWidth, weight);
    lanes += weight;
  }
  store(total, lanes);
}

/// One block of queries, from row `first`, against the keys of block `key_begin`.
void forward_tile(const AttentionProblem& p, int64_t first, int64_t key_begin,
                  const ForwardBuffers& b) {
  const int64_t dim = padded_dim(p), shift = shift_of(p);
  const int64_t rows = round_up(min_of(kBlock, p.num_queries - first), kStrip);
  const int64_t keys = min_of(kBlock, p.num_keys - key_begin);
  for (int64_t r = 0; r < rows; r += kStrip) {
    const int64_t seen = first + r + shift - key_begin + 1;  // keys of the block that row r sees
    const int64_t columns = min_of(keys, seen + kStrip - 1);
    if (columns <= 0) continue;
    const int64_t vectors = round_up(columns, kWidth) / kWidth;
    multiply<false>({b.queries + r * dim, dim, 1}, dim, b.keys + key_begin * dim, kBlock, b.scores,
                    kBlock, vectors);
    for (int64_t i = 0; i < kStrip; ++i) {
      float* scores = b.scores + i * kBlock;
      for (int64_t j = max_of(0, min_of(keys, seen + i)); j < vectors * kWidth; ++j) {
        scores[j] = -kInfinity;
      }
      if (seen + i <= 0) {  // a later row of the strip sees a key, this one none: weights of zero
        for (int64_t j = 0; j < vectors; ++j) store(scores + j * kWidth, Vec{});
        continue;
      }
      const int64_t row = r + i;
      soften_row(scores, vectors, b.tops + row, b.totals + row * kWidth, b.sums + row * dim, dim);
    }
    multiply<true>({b.scores, kBlock, 1}, columns, b.values + key_begin * dim, dim,
                   b.sums + r * dim, dim, dim / kWidth);
  }
}

template <typename T>
void forward_head(const AttentionProblem& p, int64_t batch, int64_t head, const ForwardBuffers& b) {
  const int64_t dim = padded_dim(p);
  const T* q = head_of<T>(p.q, batch, head);
  T* out = head_of<T>(p.out, batch, head);
  float* log_sum_exp = p.log_sum_exp + (batch * p.heads + head) * p.num_queries;
  for (int64_t first = 0; first < p.num_queries; first += kBlock) {
    const int64_t rows = min_of(kBlock, p.num_queries - first);
    pack_rows(q, p.q.token_stride, first, rows, p.head_dim, p.scale * kLog2E, b.queries, dim);
    for (int64_t i = 0; i < kBlock * dim; i += kWidth) store(b.sums + i, Vec{});
    for (int64_t i = 0; i < kBlock; ++i) {
      b.tops[i] = -kInfinity;
      store(b.totals + i * kWidth, Vec{});
    }
    const int64_t key_end = min_of(p.num_keys, first + rows + shift_of(p));
    for (int64_t begin = 0; begin < key_end; begin += kBlock) forward_tile(p, first, begin, b);
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
  ForwardBuffers buffers;
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

struct BackwardBuffers {
  float *queries, *grad_outs, *grad_queries;  // [T, D]
  float *log_sums, *deltas;        // [T]: log2 of the sum of 2^score; sum of grad_out * out
  float *grad_keys, *grad_values;  // [S, D]
  float *keys, *keys_across, *values_across;  // [kBlock, D] and two [D, kBlock]
  float *weights, *grad_scores;               // [kBlock, kBlock]
};

int64_t place(const AttentionProblem& p, float* workspace, BackwardBuffers& b) {
  Arena arena{workspace};
  const int64_t dim = padded_dim(p);
  const int64_t queries = round_up(p.num_queries, kBlock), keys = round_up(p.num_keys, kBlock);
  b.queries = arena.take(queries * dim);
  b.grad_outs = arena.take(queries * dim);
  b.grad_queries = arena.take(queries * dim);
  b.log_sums = arena.take(queries);
  b.deltas = arena.take(queries);
  b.grad_keys = arena.take(keys * dim);
  b.grad_values = arena.take(keys * dim);
  b.keys = arena.take(kBlock * dim);
  b.keys_across = arena.take(kBlock * dim);
  b.values_across = arena.take(kBlock * dim);
  b.weights = arena.take(kBlock * kBlock);
  b.grad_scores = arena.take(kBlock * kBlock);
  return arena.used;
}

/// Packs one head's queries and output gradients and finds deltas; rows past the last get a weight
/// of 2^-inf.
template <typename T>
void pack_queries(const AttentionProblem& p, int64_t batch, int64_t head,
                  const BackwardBuffers& b) {
  const int64_t dim = padded_dim(p), padded = round_up(p.num_queries, kBlock);
  const T* grad_out = head_of<T>(p.grad_out, batch, head);
  const T* out = head_of<T>(p.out, batch, head);
  const float* log_sum_exp = p.log_sum_exp + (batch * p.heads + head) * p.num_queries;
  pack_rows(head_of<T>(p.q, batch, head), p.q.token_stride, 0, p.num_queries, p.head_dim,
            p.scale * kLog2E, b.queries, dim);
  pack_rows(grad_out, p.grad_out.token_stride, 0, p.num_queries, p.head_dim, 1.0f, b.grad_outs,
            dim);
  for (int64_t i = 0; i < padded * dim; i += kWidth) store(b.grad_queries + i, Vec{});
  for (int64_t t = 0; t < padded; ++t) {
    b.log_sums[t] = t < p.num_queries ? log_sum_exp[t] * kLog2E : kInfinity;
    b.deltas[t] = 0;
    if (t >= p.num_queries) continue;
    float* row =
        b.weights;  // not yet in use; but a head may be wider than a tile: take it piece by piece
    Vec sum{};
    for (int64_t d = 0; d < p.head_dim; d += kBlock) {
      const int64_t piece = min_of(kBlock, p.head_dim - d);
      pack_row(out + t * p.out.token_stride + d, piece, 1.0f, row, round_up(piece, kWidth));
      for (int64_t i = 0; i < piece; i += kWidth) {
        sum += load(row + i) * load(b.grad_outs + t * dim + d + i);
      }
    }
    b.deltas[t] = sum_of(sum);
  }
}

/// Weights and score gradients of the strip from row `r` of a tile: columns past a row's last key
/// are zero.
void backward_strip(const AttentionProblem& p, int64_t first, int64_t r, int64_t seen, int64_t keys,
                    const BackwardBuffers& b) {
  const int64_t dim = padded_dim(p);
  const int64_t columns = min_of(keys, seen + kStrip - 1);
  const int64_t vectors = round_up(columns, kWidth) / kWidth;
  float* weights = b.weights + r * kBlock;
  float* grads = b.grad_scores + r * kBlock;
  multiply<false>({b.queries + (first + r) * dim, dim, 1}, dim, b.keys_across, kBlock, weights,
                  kBlock, vectors);
  multiply<false>({b.grad_outs + (first + r) * dim, dim, 1}, dim, b.values_across, kBlock, grads,
                  kBlock, vectors);
  for (int64_t i = 0; i < kStrip; ++i, weights += kBlock, grads += kBlock) {
    const Vec log_sum = splat(b.log_sums[first + r + i]);
    const Vec delta = splat(b.deltas[first + r + i]);
    for (int64_t j = 0; j < vectors * kWidth; j += kWidth) {
      const Vec weight = exp2_of(load(weights + j) - log_sum);
      store(weights + j, weight);
      store(grads + j, weight * (load(grads + j) - delta));
    }
    for (int64_t j = max_of(0, min_of(keys, seen + i)); j < kBlock; ++j) weights[j] = grads[j] = 0;
  }
}

/// One tile: adds to grad_queries of its rows, grad_keys and grad_values of its columns.
void backward_tile(const AttentionProblem& p, int64_t first, int64_t key_begin,
                   const BackwardBuffers& b) {
  const int64_t dim = padded_dim(p), vectors = dim / kWidth;
  const int64_t rows = round_up(min_of(kBlock, p.num_queries - first), kStrip);
  const int64_t keys = min_of(kBlock, p.num_keys - key_begin);
  const int64_t distance =
      first + shift_of(p) - key_begin;  // the tile's row r sees its keys 0 .. r + distance
  for (int64_t r = 0; r < rows; r += kStrip) {
    const int64_t seen = r + distance + 1;
    const int64_t columns = min_of(keys, seen + kStrip - 1);
    if (columns <= 0) continue;
    backward_strip(p, first, r, seen, keys, b);
    multiply<true>({b.grad_scores + r * kBlock, kBlock, 1}, columns, b.keys, dim,
                   b.grad_queries + (first + r) * dim, dim, vectors);
  }
  for (int64_t j = 0; j < keys; j += kStrip) {
    const int64_t from = max_of(0, j - distance);  // the first row that sees key j
    const int64_t depth = rows - from, at = from * kBlock + j;
    if (depth <= 0) break;
    multiply<true>({b.weights + at, 1, kBlock}, depth, b.grad_outs + (first + from) * dim, dim,
                   b.grad_values + (key_begin + j) * dim, dim, vectors);
    multiply<true>({b.grad_scores + at, 1, kBlock}, depth, b.queries + (first + from) * dim, dim,
                   b.grad_keys + (key_begin + j) * dim, dim, vectors);
  }
}

template <typename T>
void backward_head(const AttentionProblem& p, int64_t batch, int64_t head,
                   const BackwardBuffers& b) {
  const int64_t dim = padded_dim(p), key_head = head / (p.heads / p.key_heads);
  const T* k = head_of<T>(p.k, batch, key_head);
  const T* v = head_of<T>(p.v, batch, key_head);
  pack_queries<T>(p, batch, head, b);
  for (int64_t begin = 0; begin < p.num_keys; begin += kBlock) {
    const int64_t keys = min_of(kBlock, p.num_keys - begin);
    pack_rows(v, p.v.token_stride, begin, keys, p.head_dim, 1.0f, b.keys, dim);
    transpose_block(b.keys, dim, b.values_across);
    pack_rows(k, p.k.token_stride, begin, keys, p.head_dim, 1.0f, b.keys, dim);
    transpose_block(b.keys, dim, b.keys_across);
    const int64_t first_query = max_of(0, begin - shift_of(p)) / kBlock * kBlock;
    for (int64_t first = first_query; first < p.num_queries; first += kBlock) {
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
  BackwardBuffers b;
  place(p, workspace, b);
  const int64_t dim = padded_dim(p), group = p.heads / p.key_heads;
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
      // The packed queries carry scale * log2(e); the keys' gradient wants scale alone.
      unpack_row(b.grad_keys + s * dim, p.head_dim, kLn2, grad_k + s * p.grad_k.token_stride);
      unpack_row(b.grad_values + s * dim, p.head_dim, 1.0f, grad_v + s * p.grad_v.token_stride);
    }
  }
}

int64_t forward_workspace(const AttentionProblem& p) {
  ForwardBuffers buffers;
  return place(p, nullptr, buffers);
}
int64_t backward_workspace(const AttentionProblem& p) {
  BackwardBuffers buffers;
  return place(p, nullptr, buffers);
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
