// One-pass operations on flat buffers: what optimizers need.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

namespace tessera::kernels {

/// Rounding to 16 or 8 bits up or down at random, with the probability that makes the mean exact (as in
/// Gupta et al., Deep Learning with Limited Numerical Precision, 2015): updates smaller than half a
/// step of the format are not lost. The bits are a function of (seed, step, position) alone, so
/// that a result depends neither on threads nor on how a buffer is split.
struct StochasticRounding {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_position = 0;  ///< of element 0
};

struct AdamWOptions {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t step = 1;           ///< number of this update, from 1
  double gradient_scale = 1;  ///< gradients are multiplied by it; the tensor stays as it is
  std::optional<StochasticRounding> rounding;  ///< of bfloat16 results; unset: to nearest
  /// Both float32 [1] on the parameter's device, or undefined, so that the host need not know them:
  /// nothing is changed if found_inf is not 0; gradients are multiplied by gradient_factor, too.
  at::Tensor found_inf, gradient_factor;
};

/// One update of decoupled-decay Adam (Loshchilov and Hutter, ICLR 2019) in one pass, arithmetic in
/// float32. All 1-D, contiguous, on one device that has kernels (fused.h), of one length: parameter, gradient and the two states
/// each float32 or bfloat16, the states alike. `copy`, if defined, is bfloat16 and gets the new
/// parameter rounded to nearest.
void adamw(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, const AdamWOptions& options, const at::Tensor& copy = {});

/// to [n] bfloat16, float16 or float8_e4m3fn = from [n] float32, both contiguous, on one device that has
/// kernels. What is beyond E4M3's 448 becomes that.
void round_stochastically(const at::Tensor& from, const at::Tensor& to,
                          const StochasticRounding& rounding);

/// Which numbers a dropout draws: a function of these and of the position of an element alone.
struct DropoutKey {
  uint64_t seed = 0;
  int64_t step = 0;
  uint64_t layer = 0;
  int64_t first_position = 0;  ///< of element 0
  /// Every `row` elements the position goes on at the next multiple of `row_stride` from the first;
  /// 0: elements stand side by side.
  int64_t row = 0, row_stride = 0;
};

/// Probabilities are kept in 32 bits: an element stays if its random bits are at least this.
uint32_t drop_threshold(double probability);

/// The two halves of what a key and a position are mixed to random bits with.
std::array<uint32_t, 2> random_key(const DropoutKey& key);

/// to [n] = from [n] / (1 - probability), or 0 for the elements that are drawn. Both contiguous, on
/// one device that has kernels, float32, bfloat16 or float16 alike.
void drop(const at::Tensor& from, const at::Tensor& to, double probability, const DropoutKey& key);

/// The sum of squares of a contiguous tensor in float64, 0-d, on its device: the host does not wait
/// for it. float32, bfloat16 and float16 in one pass on the CPU (blocks of 4096 elements, added in
/// order: the same bits for any number of threads and any instruction set) and on GPUs (the same bits
/// at each run). Nearer to the exact sum than one in float32, which loses small terms; not finite if
/// an element is not.
at::Tensor sum_of_squares(const at::Tensor& values);

}  // namespace tessera::kernels
