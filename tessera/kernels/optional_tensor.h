// An optional tensor as an argument of LibTorch's autograd functions, which take no undefined one.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// It, or nothing if it is undefined. `optional` must outlive the list.
inline at::TensorList list_of(const at::Tensor& optional) {
  return optional.defined() ? at::TensorList(optional) : at::TensorList();
}

}  // namespace tessera::kernels
