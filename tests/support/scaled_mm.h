// A GPU's units of 8 bits on the CPU, for tests: at::_scaled_mm and at::_scaled_mm_v2 written out, of arguments that
// LibTorch's operators for CUDA take (ATen/native/cuda/ScaledBlas.cpp of 2.11), with a Hopper's demands on layouts.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <string>
#include <vector>

namespace tessera::testing {

struct ScaledMmCall {
  std::string scales;  ///< "tensor", "row", "1x128 x 128x128", "1x128 x 1x128" or "1x32"
  int64_t rows, depth, columns;
  at::ScalarType result;
  bool fast;
};

/// While it lives, these operators of CPU tensors are the written out ones. Throws c10::ValueError from them for other
/// arguments. One at a time.
class ScaledMmScope {
 public:
  ScaledMmScope();
  ~ScaledMmScope();
  ScaledMmScope(const ScaledMmScope&) = delete;
  ScaledMmScope& operator=(const ScaledMmScope&) = delete;

  static std::vector<ScaledMmCall>& calls();

 private:
  torch::Library library_;
};

}  // namespace tessera::testing
