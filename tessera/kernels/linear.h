// x W^T + b whose backward adds the weight's gradient to where it is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace tessera::kernels {

/// Makes one product of the summands that ranks compute when its inner dimension is divided over
/// them: `sum` adds them, `gradient` brings the gradient back. Both are collective.
struct ProductOverRanks {
  /// A summand [.., O], which it may change -> this rank's part of the sum.
  std::function<at::Tensor(const at::Tensor& summand)> sum;
  /// The gradient of that part -> the gradient of the whole sum, which is that of every summand.
  std::function<at::Tensor(const at::Tensor& gradient)> gradient;
};
using ProductOverRanksPtr = std::shared_ptr<const ProductOverRanks>;

/// Takes the three products of a linear layer in another way than in the dtype of its input. What it
/// gives is new, contiguous and without a graph.
class LinearProducts {
 public:
  virtual ~LinearProducts() = default;

  /// rows [N, I] W^T -> [N, O] of the dtype of `rows`; `weight` [O, I], or the transpose of [I, O].
  virtual at::Tensor forward(const at::Tensor& rows, const at::Tensor& weight) const = 0;
  /// gradient [N, O] W -> [N, I]. `trains`: weight_gradient with the same gradient follows.
  virtual at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight,
                                    bool trains) const = 0;
  /// The weight's gradient [O, I], or its transpose if `in_out`: gradient^T rows, added to `sink` if
  /// that is defined, else returned with `options`.
  virtual at::Tensor weight_gradient(const at::Tensor& sink, const at::Tensor& rows,
                                     const at::Tensor& gradient, bool in_out,
                                     const at::TensorOptions& options) const = 0;
};
using LinearProductsPtr = std::shared_ptr<const LinearProducts>;

/// The same as at::linear: x [.., I], weight [O, I], bias [O] or undefined.
///
/// If a parameter is a leaf whose .grad() is already there (contiguous; of its dtype, or float32
/// for a 16-bit parameter: a view of a flat gradient buffer), backward adds to it, the weight's
/// gradient by one matrix product with beta = 1, and hands autograd nothing: no temporary [O, I],
/// no pass to add it, no rounding to 16 bits. Otherwise the gradient is returned as usual. Gradient
/// accumulation and a weight used twice (tied) work in both cases. So torch::autograd::grad, which
/// must not touch .grad(), needs parameters without one. Not twice differentiable.
///
/// In a DeferScope (autograd/deferred_gradients.h) the product for a kept weight gradient waits
/// there; that of a shared input (autograd/shared_input.h) with the input.
///
/// Under autocast the products take its dtype; a float32 weight is cast once (kernels/autocast.h)
/// and its gradient stays float32.
///
/// `over_ranks`: the product is this rank's summand; the bias is added to the sum. `products`: takes
/// the products, null: as they are.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                  const ProductOverRanksPtr& over_ranks = {},
                  const LinearProductsPtr& products = {});

/// The same with the weight stored as [I, O]: x W + b.
at::Tensor linear_in_out(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                         const ProductOverRanksPtr& over_ranks = {},
                         const LinearProductsPtr& products = {});

}  // namespace tessera::kernels
