#include "tessera/kernels/linear.h"

#include "tessera/kernels/linears.h"
#include "tessera/kernels/optional_tensor.h"

namespace tessera::kernels {

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const ProductOverRanksPtr& over_ranks, const LinearProductsPtr& products) {
  return linears(x, weight, list_of(bias), {.over_ranks = over_ranks, .products = products})[0];
}

at::Tensor linear_in_out(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const ProductOverRanksPtr& over_ranks, const LinearProductsPtr& products) {
  return linears(x, weight, list_of(bias),
                 {.in_out = true, .over_ranks = over_ranks, .products = products})[0];
}

}  // namespace tessera::kernels
