// The fused operators of each kind of device behind one table, and which tensors they take.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "tessera/kernels/fused_args.h"

namespace tessera::kernels {

/// What one kind of device computes the fused operators with. Each function does the whole of its
/// work: on LibTorch's threads, or as launches on the device's current stream, without stopping the
/// host. What is summed over rows or elements is summed in an order that depends on their number
/// alone. `device`: where results that it makes are to lie.
struct FusedKernels {
  void (*rms_norm)(const RmsNormArgs&);
  /// Gives the weight's gradient, float32 [dim].
  at::Tensor (*rms_norm_grad)(const RmsNormGradArgs&, at::Device device);
  void (*layer_norm)(const LayerNormArgs&);
  /// Gives the gradients of weight and bias, float32 [2, dim].
  at::Tensor (*layer_norm_grad)(const LayerNormGradArgs&, at::Device device);
  void (*rotary)(const RotaryArgs&);
  void (*swiglu)(const SwigluArgs&);
  void (*swiglu_grad)(const SwigluGradArgs&);
  void (*gelu_tanh)(const GeluArgs&);
  void (*cross_entropy)(const CrossEntropyArgs&);
  /// x [N, D], contiguous, summed over N: float32 [D].
  at::Tensor (*sum_of_rows)(const at::Tensor& x);
  void (*adamw)(const AdamWArgs&);
  void (*round_stochastically)(const RoundArgs&);
  void (*drop)(const DropArgs&);
  /// float64 0-d, of a contiguous float32, bfloat16 or float16 tensor.
  at::Tensor (*sum_of_squares)(const at::Tensor& values);
  /// Null on the host, where LibTorch's does as well.
  void (*add)(const AddArgs&);
  /// Null on the host, which rounds by kernels/fp8.h.
  void (*fp8_cast)(const Fp8CastArgs&);
};

/// Null: plain operators.
const FusedKernels* fused_kernels(at::DeviceType device);
/// The same of a device that has some.
const FusedKernels& fused_kernels(const at::Tensor& x);

/// Lets tensors of `device` be computed with `kernels` until the scope ends, for tests: those of a
/// GPU on the host. Not to be nested in running kernels.
class FusedKernelsScope {
 public:
  FusedKernelsScope(at::DeviceType device, const FusedKernels* kernels);
  ~FusedKernelsScope();
  FusedKernelsScope(const FusedKernelsScope&) = delete;
  FusedKernelsScope& operator=(const FusedKernelsScope&) = delete;

 private:
  at::DeviceType device_;
  const FusedKernels* previous_;
};

/// Are all defined tensors on one device that has kernels, and of the same dtype, float32, bfloat16 or
/// float16?
bool can_fuse(std::initializer_list<at::Tensor> tensors);

/// float32, bfloat16, float16 or float8_e4m3fn.
Element element_of(at::ScalarType dtype);

/// The dtype of a norm's result: what the next product takes, so that it need not cast.
at::ScalarType norm_result(const at::Tensor& x);

/// `x` [.., D] as rows of D contiguous elements that lie a constant stride apart; copied only if it
/// cannot be seen so.
struct RowView {
  at::Tensor tensor;
  int64_t rows, dim, stride;
};
RowView rows_of(const at::Tensor& x);

/// x [N, D], contiguous, summed over N in float32 (float64 for float64).
at::Tensor sum_of_rows(const at::Tensor& x);

inline const void* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr() : nullptr;
}

}  // namespace tessera::kernels
