// The fused operators in vector types. Included once per instruction set; see fused_kernel.h for
// what each computes.
#pragma once

#include "tessera/kernels/cpu/fused_kernel.h"
#include "tessera/kernels/cpu/vec_math.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {
namespace {

/// X: type of x, the weight and the sum; Y: of y.
template <typename X, typename Y>
void rms_norm(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.dim;
  const X* weight = static_cast<const X*>(args.weight);
  for (int64_t row = begin; row < end; ++row) {
    const X* x = static_cast<const X*>(args.x) + row * dim;
    Y* y = static_cast<Y*>(args.y) + row * dim;
    Vec squares = {};
    if (args.residual != nullptr) {
      const X* residual = static_cast<const X*>(args.residual) + row * dim;
      X* sum = static_cast<X*>(args.sum) + row * dim;
      for_each_vector(
          0, dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
            const Vec v = rounded_to(part.load(x + i) + part.load(residual + i), sum);
            part.store(sum + i, v);
            squares += v * v;
          });
      x = sum;
    } else {
      for_each_vector(
          0, dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
            const Vec v = part.load(x + i);
            squares += v * v;
          });
    }
    const float mean = sum_of(squares) / static_cast<float>(dim);
    const float scale = 1.0f / __builtin_sqrtf(mean + args.eps);
    args.reciprocal_rms[row] = scale;
    for_each_vector(
        0, dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
          part.store(y + i, part.load(weight + i) * rounded_to(part.load(x + i) * scale, x));
        });
  }
}

template <typename X, typename Y>
void rms_norm_grad(const RmsNormGradArgs& args, int64_t begin, int64_t end,
                   float* weight_gradient) {
  const int64_t dim = args.dim;
  const X* weight = static_cast<const X*>(args.weight);
  for (int64_t row = begin; row < end; ++row) {
    const Y* grad = static_cast<const Y*>(args.grad) + row * dim;
    const X* x = static_cast<const X*>(args.x) + row * dim;
    X* grad_x = static_cast<X*>(args.grad_x) + row * dim;
    const float scale = args.reciprocal_rms[row];
    Vec dots = {};
    for_each_vector(
        0, dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
          dots += part.load(grad + i) * part.load(weight + i) * part.load(x + i);
        });
    const float along = sum_of(dots) * scale * scale * scale / static_cast<float>(dim);
    const auto finish = [&](const X* grad_sum) __attribute__((always_inline)) {
      for_each_vector(
          0, dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
            const Vec g = part.load(grad + i);
            const Vec v = part.load(x + i);
            Vec result = g * part.load(weight + i) * scale - v * along;
            if (grad_sum != nullptr) result += part.load(grad_sum + i);
            part.store(grad_x + i, result);
            const Vec normed = rounded_to(v * scale, x);
            part.store(weight_gradient + i, part.load(weight_gradient + i) + g * normed);
          });
    };
    if (args.grad_sum != nullptr) {
      finish(static_cast<const X*>(args.grad_sum) + row * dim);
    } else {
      finish(nullptr);
    }
  }
}

template <typename X, typename Y>
void layer_norm(const LayerNormArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.dim;
  const X* weight = static_cast<const X*>(args.weight);
  const X* bias = static_cast<const X*>(args.bias);
  for (int64_t row = begin; row < end; ++row) {
    const X* x = static_cast<const X*>(args.x) + row * dim;
    Y* y = static_cast<Y*>(args.y) + row * dim;
    Vec sum = {}, squares = {};
    for_each_vector(
        0,
        dim, [&](int64_t i, auto part) __attribute__((always_inline)) { sum += part.load(x + i); });
    const float mean = sum_of(sum) / static_cast<float>(dim);
    int64_t i = 0;
    for (; i + kWidth <= dim; i += kWidth) {
      const Vec v = load(x + i) - mean;
      squares += v * v;
    }
    float total = sum_of(squares);
    if (i < dim) {  // what lies beyond the end is no zero once the mean is taken off
      X last[kWidth] = {};
      for (int64_t k = 0; i + k < dim; ++k) last[k] = x[i + k];
      const Vec v = load(last) - mean;
      for (int64_t k = 0; i + k < dim; ++k) total += v[k] * v[k];
    }
    const float scale = 1.0f / __builtin_sqrtf(total / static_cast<float>(dim) + args.eps);
    args.statistics[2 * row] = mean;
    args.statistics[2 * row + 1] = scale;
    for_each_vector(
        0, dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
          const Vec normed = (part.load(x + i) - mean) * scale;
          part.store(y + i, part.load(weight + i) * normed + part.load(bias + i));
        });
  }
}

template <typename X, typename Y>
void layer_norm_grad(const LayerNormGradArgs& args, int64_t begin, int64_t end, float* gradients) {
  const int64_t dim = args.dim;
  const X* weight = static_cast<const X*>(args.weight);
  float* bias_gradient = gradients + dim;
  for (int64_t row = begin; row < end; ++row) {
    const Y* grad = static_cast<const Y*>(args.grad) + row * dim;
    const X* x = static_cast<const X*>(args.x) + row * dim;
    X* grad_x = static_cast<X*>(args.grad_x) + row * dim;
    const float mean = args.statistics[2 * row], scale = args.statistics[2 * row + 1];
    Vec sum = {}, dots = {};
    for_each_vector(
        0, dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
          const Vec g = part.load(grad + i) * part.load(weight + i);
          sum += g;
          dots += g * (part.load(x + i) - mean);
        });
    const float average = sum_of(sum) / static_cast<float>(dim);
    const float along = sum_of(dots) * scale * scale / static_cast<float>(dim);
    for_each_vector(
        0, dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
          const Vec g = part.load(grad + i);
          const Vec centred = part.load(x + i) - mean;
          part.store(grad_x + i, (g * part.load(weight + i) - average - centred * along) * scale);
          part.store(gradients + i, part.load(gradients + i) + g * centred * scale);
          part.store(bias_gradient + i, part.load(bias_gradient + i) + g);
        });
  }
}

template <typename T>
void rotary(const RotaryArgs& args, int64_t begin, int64_t end) {
  const int64_t half = args.dim / 2;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t token = row % args.tokens;
    const T* x = static_cast<const T*>(args.x) + row / args.tokens * args.batch_stride +
                 token * args.token_stride;
    T* y = static_cast<T*>(args.y) + row * args.heads * args.dim;
    const float* cos = args.cos + row % args.table_rows * args.dim;
    const float* sin = args.sin + row % args.table_rows * args.dim;
    // The transpose swaps which half's sine meets which, and the sign.
    const float* sin_of_second = args.inverse ? sin + half : sin;
    const float* sin_of_first = args.inverse ? sin : sin + half;
    const float sign = args.inverse ? -1.0f : 1.0f;
    for (int64_t head = 0; head < args.heads; ++head, x += args.head_stride, y += args.dim) {
      for_each_vector(
          0, half, [&](int64_t i, auto part) __attribute__((always_inline)) {
            const Vec first = part.load(x + i);
            const Vec second = part.load(x + half + i);
            part.store(y + i,
                       first * part.load(cos + i) - sign * second * part.load(sin_of_second + i));
            part.store(y + half + i, second * part.load(cos + half + i) +
                                         sign * first * part.load(sin_of_first + i));
          });
    }
  }
}

/// A NaN stays one: a comparison with it is false.
TESSERA_INLINE Vec at_most(Vec v, float limit) { return v > splat(limit) ? splat(limit) : v; }
TESSERA_INLINE Vec at_least(Vec v, float limit) { return v < splat(limit) ? splat(limit) : v; }

template <typename T, bool kClamped>
void swiglu_rows(const SwigluArgs& args, int64_t begin, int64_t end) {
  const float scale = args.clamp.scale, limit = args.clamp.limit;
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = static_cast<const T*>(args.gate) + row * args.gate_stride;
    const T* up = static_cast<const T*>(args.up) + row * args.up_stride;
    T* y = static_cast<T*>(args.y) + row * args.dim;
    for_each_vector(
        0, args.dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
          const Vec g = part.load(gate + i), u = part.load(up + i);
          if constexpr (kClamped) {
            const Vec bound = at_most(g, limit);
            const Vec open = at_least(at_most(u, limit), -limit) + 1.0f;
            part.store(y + i, bound / (1.0f + exp(-scale * bound)) * open);
          } else {
            part.store(y + i, g / (1.0f + exp(-g)) * u);
          }
        });
  }
}

template <typename T>
void swiglu(const SwigluArgs& args, int64_t begin, int64_t end) {
  (args.clamped ? swiglu_rows<T, true> : swiglu_rows<T, false>)(args, begin, end);
}

template <typename T, bool kClamped>
void swiglu_grad_rows(const SwigluGradArgs& args, int64_t begin, int64_t end) {
  const float scale = args.clamp.scale, limit = args.clamp.limit;
  for (int64_t row = begin; row < end; ++row) {
    const T* grad = static_cast<const T*>(args.grad) + row * args.dim;
    const T* gate = static_cast<const T*>(args.gate) + row * args.gate_stride;
    const T* up = static_cast<const T*>(args.up) + row * args.up_stride;
    T* grad_gate = static_cast<T*>(args.grad_gate) + row * args.grad_stride;
    T* grad_up = static_cast<T*>(args.grad_up) + row * args.grad_stride;
    for_each_vector(
        0, args.dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
          const Vec dy = part.load(grad + i), g = part.load(gate + i), u = part.load(up + i);
          if constexpr (kClamped) {
            const Vec bound = at_most(g, limit), inner = scale * bound, s = sigmoid(inner);
            const Vec open = at_least(at_most(u, limit), -limit) + 1.0f;
            // What a bound holds back has no gradient.
            const Vec of_up = dy * bound * s, of_gate = dy * open * s * (1.0f + inner * (1.0f - s));
            part.store(grad_up + i, abs(u) > splat(limit) ? Vec{} : of_up);
            part.store(grad_gate + i, g > splat(limit) ? Vec{} : of_gate);
          } else {
            const Vec s = sigmoid(g);
            part.store(grad_up + i, dy * g * s);
            part.store(grad_gate + i, dy * u * s * (1.0f + g * (1.0f - s)));
          }
        });
  }
}

template <typename T>
void swiglu_grad(const SwigluGradArgs& args, int64_t begin, int64_t end) {
  (args.clamped ? swiglu_grad_rows<T, true> : swiglu_grad_rows<T, false>)(args, begin, end);
}

inline constexpr float kGeluScale = 0.79788456080286536f;  // sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715f;

template <typename T>
void gelu_tanh(const void* x_data, void* y_data, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(x_data);
  T* y = static_cast<T*>(y_data);
  for_each_vector(
      begin, end, [&](int64_t i, auto part) __attribute__((always_inline)) {
        const Vec v = part.load(x + i);
        const Vec inner = kGeluScale * (v + kGeluCubic * v * v * v);
        part.store(y + i, 0.5f * v * (1.0f + tanh(inner)));
      });
}

template <typename T>
void gelu_tanh_grad(const void* grad_data, const void* x_data, void* grad_x_data, int64_t begin,
                    int64_t end) {
  const T* grad = static_cast<const T*>(grad_data);
  const T* x = static_cast<const T*>(x_data);
  T* grad_x = static_cast<T*>(grad_x_data);
  for_each_vector(
      begin, end, [&](int64_t i, auto part) __attribute__((always_inline)) {
        const Vec v = part.load(x + i);
        const Vec t = tanh(kGeluScale * (v + kGeluCubic * v * v * v));
        const Vec slope = kGeluScale * (1.0f + 3.0f * kGeluCubic * v * v);
        const Vec derivative = 0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * slope;
        part.store(grad_x + i, part.load(grad + i) * derivative);
      });
}

TESSERA_INLINE float largest(const float* logits, int64_t vocab) {
  const float lowest = -__builtin_inff();
  Vec tops[4] = {splat(lowest), splat(lowest), splat(lowest), splat(lowest)};
  int64_t i = 0;
  for (; i + 4 * kWidth <= vocab; i += 4 * kWidth) {
    for (int k = 0; k < 4; ++k) tops[k] = max(load(logits + i + k * kWidth), tops[k]);
  }
  float top = max_of(max(max(tops[0], tops[1]), max(tops[2], tops[3])));
  for (; i < vocab; ++i) top = logits[i] > top ? logits[i] : top;
  return top;
}

/// logits become exp(logit - top); returns their sum, blocks of 2048 in float32 lanes, the blocks
/// in double.
TESSERA_INLINE double exponentiate(float* logits, int64_t vocab, float top) {
  double total = 0;
  for (int64_t block = 0; block < vocab; block += 2048) {
    const int64_t end = block + 2048 < vocab ? block + 2048 : vocab;
    Vec sum = {};
    int64_t i = block;
    for (; i + kWidth <= end; i += kWidth) {
      const Vec e = exp(load(logits + i) - top);
      store(logits + i, e);
      sum += e;
    }
    total += sum_of(sum);
    if (i < end) {
      store_partial(logits + i, exp(load_partial(logits + i, end - i) - top), end - i);
      for (; i < end; ++i) total += logits[i];
    }
  }
  return total;
}

template <typename T>
void cross_entropy(const CrossEntropyArgs& args, int64_t begin, int64_t end) {
  const int64_t vocab = args.vocab;
  for (int64_t row = begin; row < end; ++row) {
    float* logits = args.logits + row * vocab;
    T* gradient = args.gradient == nullptr ? nullptr : static_cast<T*>(args.gradient) + row * vocab;
    const int64_t target = args.targets[row];
    const bool ignored = target == args.ignore_index;
    if (ignored) {
      args.losses[row] = 0;
      if (gradient != nullptr) {
        for_each_vector(
            0, vocab, [&](int64_t i, auto part) __attribute__((always_inline)) {
              part.store(gradient + i, Vec{});
            });
      }
      continue;
    }
    const float top = largest(logits, vocab);
    const double target_logit = logits[target];
    const double total = exponentiate(logits, vocab, top);
    args.losses[row] = __builtin_log(total) + top - target_logit;
    if (gradient == nullptr) continue;
    const float scale = args.scales[row];
    const float at_target = static_cast<float>((logits[target] / total - 1.0) * scale);
    const float factor = static_cast<float>(scale / total);
    for_each_vector(
        0, vocab, [&](int64_t i, auto part) __attribute__((always_inline)) {
          part.store(gradient + i, part.load(logits + i) * factor);
        });
    // Through the vector store, which knows how T rounds.
    store_partial(gradient + target, splat(at_target), 1);
  }
}

template <typename T>
void add_rows(const void* x_data, int64_t dim, int64_t begin, int64_t end, float* sums) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(x_data) + row * dim;
    for_each_vector(
        0, dim, [&](int64_t i, auto part) __attribute__((always_inline)) {
          part.store(sums + i, part.load(sums + i) + part.load(x + i));
        });
  }
}

template <typename X, typename Y>
inline constexpr NormTable kNorms = {rms_norm<X, Y>, rms_norm_grad<X, Y>, layer_norm<X, Y>,
                                     layer_norm_grad<X, Y>};

template <typename T>
constexpr FusedTable make_table() {
  return {kNorms<T, T>, rotary<T>,         swiglu<T>,        swiglu_grad<T>,
          gelu_tanh<T>, gelu_tanh_grad<T>, cross_entropy<T>, add_rows<T>};
}

}  // namespace

extern constexpr FusedTables fused_tables = {make_table<float>(), make_table<Bf16>(),
                                             make_table<Half>(), kNorms<float, Bf16>,
                                             kNorms<float, Half>};

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
