// The three products of a linear layer, of numbers rounded to 8-bit floats.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "tessera/base/fp8.h"
#include "tessera/kernels/fp8.h"
#include "tessera/kernels/linear.h"

namespace tessera::kernels {

/// What a layer's products read.
enum class Fp8Operand { input, weight, gradient };

inline constexpr int kFp8Operands = 3;
using Fp8Amax = std::array<float, kFp8Operands>;  ///< the largest magnitudes of each operand

/// What the products of one layer see of its operands in a step; whoever takes steps begins each.
struct Fp8Watch {
  bool counts = false;  ///< losses, too: on the host a pass over each operand
  Fp8Amax amax{};
  std::array<Fp8Losses, kFp8Operands> losses{};  ///< by the first product that reads an operand
  /// What a device rounded and `collect` has not brought to the host yet, or undefined: float32 [kFp8Operands, 2],
  /// largest and least scale; int64 [kFp8Operands, 2], underflows and overflows.
  at::Tensor on_device = {}, lost_on_device = {};
};
using Fp8WatchPtr = std::shared_ptr<Fp8Watch>;

/// What devices saw becomes part of each watch's amax and losses: the host waits once for all.
void collect(const std::vector<Fp8WatchPtr>& watches);

/// What fp8_delayed knows of one layer: scales for its three operands, and the largest magnitudes of
/// earlier steps, which they follow from.
class Fp8History {
 public:
  explicit Fp8History(const Fp8Recipe& recipe);

  float scale(Fp8Operand operand) const;
  /// Ends step `step` (from 0): what was `seen` on all ranks that share the layer goes into the
  /// history; every `interval` steps scale = largest_of(type) / amax / 2^margin, amax by
  /// `recipe.amax` (Transformer Engine's DelayedScaling); it stays where amax is zero or not finite.
  void finish_step(int64_t step, const Fp8Amax& seen);

  /// What a checkpoint keeps: float32 [3, 1 + history], each operand's scale and its maxima, newest
  /// first.
  const at::Tensor& state() const { return state_; }

 private:
  Fp8Recipe recipe_;
  at::Tensor state_;
};
using Fp8HistoryPtr = std::shared_ptr<Fp8History>;

/// Products as `recipe.matmul` says (not as_compute), each of numbers rounded for it, summed in
/// float32 (but see scaled_product.h), and NaN where a number of an operand is infinite, which has no scale; `watch` is told of
/// operands; `history`: of fp8_delayed, and null else.
///
/// y = x W^T: by row 1 x I of x and of W; block 1 x 128, 128 x 128; mxfp8 1 x 32. The input's
/// gradient g W: rows 1 x O of g, columns of W. The weight's g^T x: columns of both. fp8_row_wgrad16
/// multiplies g by W rounded as a whole, and takes g^T x as it is: torchao's rowwise_with_gw_hp.
/// Numbers that were rounded are kept in bfloat16, which holds them exactly, where products of it are
/// summed in float32 (multiplies_bf16_into_float), else in float32: the size of the operands while
/// they are multiplied.
///
/// `recipe.by_device`: by at::_scaled_mm of codes, for sizes of any kind, which zeros fill up (fp8_code_multiple). The host
/// waits for nothing: `watch` has it once `collect` was called. Codes of a gradient are made once for both products, if
/// they have one scale; those of inputs and weights again in the backward, where only the matrices were kept.
LinearProductsPtr fp8_products(const Fp8Recipe& recipe, Fp8WatchPtr watch,
                               Fp8HistoryPtr history = nullptr);

}  // namespace tessera::kernels
