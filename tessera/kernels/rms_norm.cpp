#include "tessera/kernels/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/kernels/cpu/fused.h"
#include "tessera/kernels/reference.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

/// {sum (undefined without a residual), y, reciprocal rms}.
std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x,
                                                       const at::Tensor& residual,
                                                       const at::Tensor& weight, double eps) {
  const int64_t dim = x.size(-1);
  const int64_t rows = x.numel() / dim;
  auto y = at::empty_like(x);
  auto sum = residual.defined() ? at::empty_like(x) : at::Tensor();
  auto reciprocal_rms = at::empty({rows}, x.options().dtype(at::kFloat));
  const RmsNormArgs args{.x = x.const_data_ptr(),
                         .residual = data_or_null(residual),
                         .weight = weight.const_data_ptr(),
                         .sum = sum.defined() ? sum.data_ptr() : nullptr,
                         .y = y.data_ptr(),
                         .reciprocal_rms = reciprocal_rms.data_ptr<float>(),
                         .dim = dim,
                         .eps = static_cast<float>(eps)};
  const auto& table = fused_table(x.scalar_type());
  at::parallel_for(0, rows, grain_of_rows(dim),
                   [&](int64_t begin, int64_t end) { table.rms_norm(args, begin, end); });
  return {sum, y, reciprocal_rms};
}

/// {gradient of x, gradient of weight}. Either incoming gradient may be undefined.
std::tuple<at::Tensor, at::Tensor> backward(at::Tensor grad, at::Tensor grad_sum,
                                            const at::Tensor& x, const at::Tensor& weight,
                                            const at::Tensor& reciprocal_rms) {
  if (!grad.defined()) return {grad_sum, at::Tensor()};
  grad = grad.contiguous();
  if (grad_sum.defined()) grad_sum = grad_sum.contiguous();
  const int64_t dim = x.size(-1);
  const int64_t rows = x.numel() / dim;
  // Groups depend on the rows alone: the same sums in the same order for any number of threads.
  const int64_t group_rows = std::max<int64_t>(32, (rows + 63) / 64);
  const int64_t groups = (rows + group_rows - 1) / group_rows;
  auto grad_x = at::empty_like(x);
  auto partial = at::zeros({groups, dim}, x.options().dtype(at::kFloat));
  const RmsNormGradArgs args{.grad = grad.const_data_ptr(),
                             .grad_sum = data_or_null(grad_sum),
                             .x = x.const_data_ptr(),
                             .weight = weight.const_data_ptr(),
                             .reciprocal_rms = reciprocal_rms.const_data_ptr<float>(),
                             .grad_x = grad_x.data_ptr(),
                             .dim = dim};
  const auto& table = fused_table(x.scalar_type());
  float* sums = partial.data_ptr<float>();
  at::parallel_for(0, groups, grain_of_rows(dim * group_rows), [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      table.rms_norm_grad(args, group * group_rows, std::min(rows, (group + 1) * group_rows),
                          sums + group * dim);
    }
  });
  for (int64_t group = 1; group < groups; ++group) {
    for (int64_t i = 0; i < dim; ++i) sums[i] += sums[group * dim + i];
  }
  return {grad_x, partial[0].to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true)};
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [sum, y, reciprocal_rms] = kernels::forward(x, {}, weight, eps);
    ctx->save_for_backward({x, weight, reciprocal_rms});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto saved = ctx->get_saved_variables();
    auto [grad_x, grad_weight] = kernels::backward(grads[0], {}, saved[0], saved[1], saved[2]);
    return {grad_x, grad_weight, {}};
  }
};

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x,
                               const at::Tensor& residual, const at::Tensor& weight, double eps) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [sum, y, reciprocal_rms] = kernels::forward(x, residual, weight, eps);
    ctx->save_for_backward({sum, weight, reciprocal_rms});
    ctx->set_materialize_grads(false);
    return {sum, y};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto saved = ctx->get_saved_variables();
    auto [grad_x, grad_weight] =
        kernels::backward(grads[1], grads[0], saved[0], saved[1], saved[2]);
    return {grad_x, grad_x, grad_weight, {}};
  }
};

void check(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1),
                    "rms_norm: expected weight [", x.dim() >= 1 ? x.size(-1) : 0, "], got ",
                    weight.sizes());
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check(x, weight);
  if (!can_fuse({x, weight}) || x.numel() == 0) return rms_norm_reference(x, weight, eps);
  return RmsNorm::apply(x.contiguous(), weight.contiguous(), eps);
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps) {
  check(x, weight);
  TORCH_CHECK_VALUE(x.sizes() == residual.sizes(), "add_rms_norm: expected residual ", x.sizes(),
                    ", got ", residual.sizes());
  if (!can_fuse({x, residual, weight}) || x.numel() == 0) {
    return add_rms_norm_reference(x, residual, weight, eps);
  }
  const auto out =
      AddRmsNorm::apply(x.contiguous(), residual.contiguous(), weight.contiguous(), eps);
  return {out[0], out[1]};
}

}  // namespace tessera::kernels
