// Autocast: weights stay as they are, products run in 16 bits.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::precision {

/// While it lives, operators of this thread on `device` run under LibTorch's autocast to `dtype`
/// (bfloat16 or float16): matrix products and attention take their inputs in it, float32 parameters
/// cast once and kept until the outermost guard ends; norms, softmax and loss stay in float32. The
/// operators of kernels/ honour it as LibTorch's do; gradients of float32 parameters are float32.
/// Its end restores what was before. One guard around forward and backward of a step casts every
/// weight once a step; a guard must not outlive an optimizer's step, which changes the weights.
/// Throws c10::ValueError for another dtype.
class Autocast {
 public:
  explicit Autocast(at::ScalarType dtype, at::DeviceType device = at::kCPU);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_;
  at::ScalarType previous_dtype_;
};

}  // namespace tessera::precision
