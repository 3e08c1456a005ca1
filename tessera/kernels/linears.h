// x W_i^T + b_i of one input x and several weights, with few and large products each way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "tessera/kernels/linear.h"

namespace tessera::kernels {

enum class ResultLayout {
  apart,        ///< each result is a tensor of its own
  side_by_side  ///< results may be columns of one tensor, which lives as long as any of them
};

struct LinearsOptions {
  bool in_out = false;  ///< weights are stored as [I, O_i]
  ResultLayout layout = ResultLayout::apart;
  ProductOverRanksPtr over_ranks = {};  ///< as of `linear`
  LinearProductsPtr products = {};      ///< likewise
};

/// {x W_i^T + b_i}: x [.., I], weights [O_i, I], biases [O_i] or none at all. Each result, and each
/// gradient of a parameter, is what `linear` makes of it.
///
/// The gradient of x is one tensor, to which each product is added. Where weights lie one below the
/// other in memory, as in a flat buffer, results side by side are one product. Where their gradients lie side
/// by side, too (swiglu's do), so is the gradient of x; and the gradients of the weights, where these are
/// kept one below the other. A result that took no part in the loss adds nothing.
std::vector<at::Tensor> linears(const at::Tensor& x, at::TensorList weights,
                                at::TensorList biases = {}, const LinearsOptions& options = {});

}  // namespace tessera::kernels
