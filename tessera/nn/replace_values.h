// A parameter's values replaced in place.
#pragma once

#include <torch/types.h>

namespace tessera::nn {

/// The module's member and its register hold this same tensor, which from now on has the shape, the
/// device and the storage of `values`. set_data would do but for parameters on the meta device.
inline void replace_values(const torch::Tensor& parameter, const torch::Tensor& values) {
  if (parameter.is_meta()) {
    parameter.unsafeGetTensorImpl()->shallow_copy_from(values.getIntrusivePtr());
  } else {
    parameter.set_data(values);
  }
}

}  // namespace tessera::nn
