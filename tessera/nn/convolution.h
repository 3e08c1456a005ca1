// Convolution over images.
#pragma once

#include <cstdint>

#include "tessera/nn/hooked.h"

namespace tessera::nn {

struct Conv2dOptions {
  int64_t kernel_size = 3;
  int64_t stride = 1;
  int64_t padding = 0;  ///< zeros on each side
  bool with_bias = false;
};

/// Cross-correlation with weight [O, I, kernel_size, kernel_size] and bias [O]; uninitialised, as
/// the layers of layers.h.
class Conv2dImpl : public Hookable {
 public:
  Conv2dImpl(int64_t in_channels, int64_t out_channels, const Conv2dOptions& options = {},
             const torch::TensorOptions& tensor_options = {});
  /// [B, I, Y, X] -> [B, O, (Y + 2 padding - kernel_size) / stride + 1, likewise]
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight, bias;  ///< bias undefined without one

 private:
  int64_t stride_, padding_;
};
using Conv2d = Hooked<Conv2dImpl>;

}  // namespace tessera::nn
