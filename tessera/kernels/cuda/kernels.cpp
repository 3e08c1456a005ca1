#include "tessera/kernels/cuda/kernels.h"

#include <ATen/ATen.h>

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

/// A launch as an operator of the table: on the current stream.
template <auto kLaunch, typename Args>
void on_current_stream(const Args& args) {
  kLaunch(args, current_stream());
}

at::Tensor floats(at::IntArrayRef sizes, at::Device device) {
  return at::empty(sizes, at::device(device).dtype(at::kFloat));
}

at::Tensor rms_norm_grad_on_gpu(const RmsNormGradArgs& args, at::Device device) {
  auto sums = floats({args.dim}, device);
  const auto partial = floats({norm_groups_of(args.rows, args.dim).groups, args.dim}, device);
  rms_norm_grad(args, partial.data_ptr<float>(), sums.data_ptr<float>(), current_stream());
  return sums;
}

at::Tensor layer_norm_grad_on_gpu(const LayerNormGradArgs& args, at::Device device) {
  auto sums = floats({2, args.dim}, device);
  const auto partial = floats({norm_groups_of(args.rows, args.dim).groups, 2, args.dim}, device);
  layer_norm_grad(args, partial.data_ptr<float>(), sums.data_ptr<float>(), current_stream());
  return sums;
}

at::Tensor sum_of_rows_on_gpu(const at::Tensor& x) {
  const int64_t rows = x.size(0), dim = x.size(1);
  auto sums = floats({dim}, x.device());
  const auto partial = floats({groups_of(rows, dim).groups, dim}, x.device());
  sum_of_rows(x.const_data_ptr(), element_of(x.scalar_type()), rows, dim, partial.data_ptr<float>(),
              sums.data_ptr<float>(), current_stream());
  return sums;
}

at::Tensor sum_of_squares_on_gpu(const at::Tensor& values) {
  const auto doubles = values.options().dtype(at::kDouble);
  auto sum = at::empty({}, doubles);
  const auto partial = at::empty({partial_squares(values.numel())}, doubles);
  sum_of_squares(values.const_data_ptr(), element_of(values.scalar_type()), values.numel(),
                 partial.data_ptr<double>(), sum.data_ptr<double>(), current_stream());
  return sum;
}

}  // namespace

const FusedKernels& gpu_kernels() {
  static constexpr FusedKernels kKernels = {
      .rms_norm = on_current_stream<rms_norm>,
      .rms_norm_grad = rms_norm_grad_on_gpu,
      .layer_norm = on_current_stream<layer_norm>,
      .layer_norm_grad = layer_norm_grad_on_gpu,
      .rotary = on_current_stream<rotary>,
      .swiglu = on_current_stream<swiglu>,
      .swiglu_grad = on_current_stream<swiglu_grad>,
      .gelu_tanh = on_current_stream<gelu_tanh>,
      .cross_entropy = on_current_stream<cross_entropy>,
      .sum_of_rows = sum_of_rows_on_gpu,
      .adamw = on_current_stream<adamw>,
      .round_stochastically = on_current_stream<round_stochastically>,
      .drop = on_current_stream<drop>,
      .sum_of_squares = sum_of_squares_on_gpu,
      .add = on_current_stream<add>,
      .fp8_cast = on_current_stream<fp8_cast>};
  return kKernels;
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
