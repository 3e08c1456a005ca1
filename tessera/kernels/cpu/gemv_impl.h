// Products of a few rows with a matrix. Their time is that of reading the matrix once, so nothing is
// packed: columns run along their numbers, or four numbers along many columns.
// Included once per instruction set; see gemv_kernel.h.
#pragma once

#include "tessera/kernels/cpu/gemv_kernel.h"
#include "tessera/kernels/cpu/vec_math.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {
namespace {

TESSERA_INLINE float widened(float x) { return x; }
TESSERA_INLINE float widened(Bf16 x) { return load_partial(&x, 1)[0]; }

TESSERA_INLINE void put(float* place, float x) { *place = x; }
TESSERA_INLINE void put(Bf16* place, float x) { store_partial(place, splat(x), 1); }

/// What is multiplied at once along columns of float32: a vector of each.
struct FloatStep {
  static constexpr int kNumbers = kWidth;
  using Whole = WholeVector;

  template <int R, typename Part>
  TESSERA_INLINE static void add(Vec (&sums)[R], const float* x, int64_t x_stride,
                                 const float* matrix, Part part) {
    const Vec numbers = part.load(matrix);
    for (int r = 0; r < R; ++r) sums[r] += part.load(x + r * x_stride) * numbers;
  }
  static PartOfVector part(int64_t count) { return {count}; }
};

/// Along columns of bfloat16: two vectors, which one instruction each makes of what lies together, the
/// numbers at even places and those at odd ones. x is split likewise (split_pairs).
struct Bf16Step {
  static constexpr int kNumbers = 2 * kWidth;
  static_assert(kSplitUnit % kNumbers == 0);

  TESSERA_INLINE static Vec even(BitsVec pairs) { return (Vec)(pairs << 16); }
  TESSERA_INLINE static Vec odd(BitsVec pairs) { return (Vec)(pairs & 0xffff0000u); }

  struct Whole {
    TESSERA_INLINE BitsVec pairs(const Bf16* p) const {
      BitsVec both;
      __builtin_memcpy(&both, p, sizeof both);
      return both;
    }
  };
  struct Part {
    int64_t count;
    TESSERA_INLINE BitsVec pairs(const Bf16* p) const {
      Bf16 buffer[kNumbers] = {};
      for (int64_t i = 0; i < count; ++i) buffer[i] = p[i];
      return Whole{}.pairs(buffer);
    }
  };

  template <int R, typename AnyPart>
  TESSERA_INLINE static void add(Vec (&sums)[R], const float* x, int64_t x_stride,
                                 const Bf16* matrix, AnyPart part) {
    const BitsVec both = part.pairs(matrix);
    for (int r = 0; r < R; ++r) {
      sums[r] += load(x + r * x_stride) * even(both);
      sums[r] += load(x + r * x_stride + kWidth) * odd(both);
    }
  }
  static Part part(int64_t count) { return {count}; }
};

template <typename X>
struct StepOf {
  using Type = FloatStep;
};
template <>
struct StepOf<Bf16> {
  using Type = Bf16Step;
};

void split_pairs(const void* numbers, int64_t rows, int64_t depth, float* out) {
  constexpr int64_t kNumbers = Bf16Step::kNumbers;
  const Bf16* x = static_cast<const Bf16*>(numbers);
  for (int64_t row = 0; row < rows; ++row, x += depth, out += split_depth(depth)) {
    for (int64_t i = 0; i < split_depth(depth); i += kNumbers) {
      const int64_t left = depth - i;
      const BitsVec both =
          left >= kNumbers ? Bf16Step::Whole{}.pairs(x + i) : Bf16Step::Part{left}.pairs(x + i);
      store(out + i, Bf16Step::even(both));
      store(out + i + kWidth, Bf16Step::odd(both));
    }
  }
}

/// Columns [column, column + C) of R rows, A steps of each column at once: C A R sums, so that none
/// waits for the one before it.
template <int R, int C, int A, typename X, typename Y>
TESSERA_INLINE void dot_columns(const GemvArgs& args, int64_t column) {
  using Step = typename StepOf<X>::Type;
  const int64_t depth = args.depth, x_stride = args.x_stride;
  const float* x = static_cast<const float*>(args.x);
  const X* matrix = static_cast<const X*>(args.matrix) + column * depth;
  Vec sums[C][A][R] = {};
  const auto add = [&](int64_t i, int a, auto part) __attribute__((always_inline)) {
    for (int c = 0; c < C; ++c) {
      Step::add(sums[c][a], x + i, x_stride, matrix + c * depth + i, part);
    }
  };
  constexpr typename Step::Whole kWhole{};
  int64_t begin = 0;
  for (; begin + A * Step::kNumbers <= depth; begin += A * Step::kNumbers) {
    for (int a = 0; a < A; ++a) add(begin + a * Step::kNumbers, a, kWhole);
  }
  for (; begin + Step::kNumbers <= depth; begin += Step::kNumbers) add(begin, 0, kWhole);
  if (begin < depth) add(begin, 0, Step::part(depth - begin));
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      Vec sum = sums[c][0][r];
      for (int a = 1; a < A; ++a) sum += sums[c][a][r];
      Y* place = static_cast<Y*>(args.out) + r * args.columns + column + c;
      put(place, sum_of(sum) + (args.accumulate ? widened(*place) : 0.0f));
    }
  }
}

/// Processors fetch ahead best along one stretch of memory while columns are short, along several at
/// once where they are long (measured: 19 beside 16 GB/s of 2 KiB columns, 23 beside 15 of 32 KiB).
/// Which columns are taken together changes no bit of any but by their length.
template <int R, typename X, typename Y>
void dot_all_columns(const GemvArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kLongBytes = 8192;
  constexpr int kTogether = 8 / R;
  int64_t column = begin;
  if (args.depth * static_cast<int64_t>(sizeof(X)) < kLongBytes) {
    for (; column < end; ++column) dot_columns<R, 1, 4, X, Y>(args, column);
    return;
  }
  for (; column + kTogether <= end; column += kTogether) {
    dot_columns<R, kTogether, 1, X, Y>(args, column);
  }
  for (; column < end; ++column) dot_columns<R, 1, 1, X, Y>(args, column);
}

/// Adds N rows of the matrix from `depth` on, times their factors, to sums [R][block].
template <int R, int N, typename X>
TESSERA_INLINE void add_rows_times(const GemvArgs& args, int64_t at, int64_t begin, int64_t end,
                                   float* sums, int64_t block) {
  const X* x = static_cast<const X*>(args.x);
  const X* matrix = static_cast<const X*>(args.matrix) + at * args.columns;
  float factors[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) factors[r][n] = widened(x[r * args.depth + at + n]);
  }
  for_each_vector(
      begin, end, [&](int64_t i, auto part) __attribute__((always_inline)) {
        Vec numbers[N];
        for (int n = 0; n < N; ++n) numbers[n] = part.load(matrix + n * args.columns + i);
        for (int r = 0; r < R; ++r) {
          float* place = sums + r * block + (i - begin);
          Vec sum = part.load(place);
          for (int n = 0; n < N; ++n) sum += numbers[n] * factors[r][n];
          part.store(place, sum);
        }
      });
}

template <int R, typename X, typename Y>
void add_along_columns(const GemvArgs& args, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 1024;  // sums that stay in the nearest cache
  constexpr int kAtOnce = 4;
  float sums[R * kBlock];
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t last = first + kBlock < end ? first + kBlock : end;
    for (float& sum : sums) sum = 0;
    int64_t at = 0;
    for (; at + kAtOnce <= args.depth; at += kAtOnce) {
      add_rows_times<R, kAtOnce, X>(args, at, first, last, sums, kBlock);
    }
    for (; at < args.depth; ++at) add_rows_times<R, 1, X>(args, at, first, last, sums, kBlock);
    for (int r = 0; r < R; ++r) {
      Y* row = static_cast<Y*>(args.out) + r * args.columns;
      for_each_vector(
          first, last, [&](int64_t i, auto part) __attribute__((always_inline)) {
            const Vec sum = part.load(sums + r * kBlock + (i - first));
            part.store(row + i, args.accumulate ? sum + part.load(row + i) : sum);
          });
    }
  }
}

/// Calls `Product` for the number of rows that there are.
template <template <int> typename Product>
void by_rows(const GemvArgs& args, int64_t begin, int64_t end) {
  static_assert(kGemvRows == 4);
  switch (args.rows) {
    case 1:
      return Product<1>::run(args, begin, end);
    case 2:
      return Product<2>::run(args, begin, end);
    case 3:
      return Product<3>::run(args, begin, end);
    default:
      return Product<4>::run(args, begin, end);
  }
}

template <typename X, typename Y>
struct Gemv {
  template <int R>
  struct ByColumns {
    static void run(const GemvArgs& args, int64_t begin, int64_t end) {
      dot_all_columns<R, X, Y>(args, begin, end);
    }
  };
  template <int R>
  struct ByDepth {
    static void run(const GemvArgs& args, int64_t begin, int64_t end) {
      add_along_columns<R, X, Y>(args, begin, end);
    }
  };
};

}  // namespace

extern constexpr GemvTable gemv_table = {
    .split_pairs = split_pairs,
    .by_columns = {{by_rows<Gemv<float, float>::ByColumns>, nullptr},
                   {by_rows<Gemv<Bf16, float>::ByColumns>, by_rows<Gemv<Bf16, Bf16>::ByColumns>}},
    .by_depth = {{by_rows<Gemv<float, float>::ByDepth>, nullptr},
                 {by_rows<Gemv<Bf16, float>::ByDepth>, by_rows<Gemv<Bf16, Bf16>::ByDepth>}}};

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
