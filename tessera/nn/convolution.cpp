#include "tessera/nn/convolution.h"

#include <ATen/ops/conv2d.h>

namespace tessera::nn {

Conv2dImpl::Conv2dImpl(int64_t in_channels, int64_t out_channels, const Conv2dOptions& options,
                       const torch::TensorOptions& tensor_options)
    : stride_(options.stride), padding_(options.padding) {
  weight = register_parameter(
      "weight", torch::empty({out_channels, in_channels, options.kernel_size, options.kernel_size},
                             tensor_options));
  if (options.with_bias) {
    bias = register_parameter("bias", torch::empty({out_channels}, tensor_options));
  }
}

torch::Tensor Conv2dImpl::forward(const torch::Tensor& x) {
  return at::conv2d(x, weight, bias, stride_, padding_);
}

}  // namespace tessera::nn
