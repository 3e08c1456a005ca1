#include "tessera/kernels/layer_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/apply.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/fused.h"
#include "tessera/kernels/observed.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, double eps, at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const int64_t dim = x.size(-1), rows = x.numel() / dim;
    auto y = at::empty(x.sizes(), x.options().dtype(dtype));
    auto statistics = at::empty({rows, 2}, x.options().dtype(at::kFloat));
    const Observed run("tessera::layer_norm", {x, weight, bias, y, statistics});
    fused_kernels(x).layer_norm({.x = x.const_data_ptr(),
                                 .weight = weight.const_data_ptr(),
                                 .bias = bias.const_data_ptr(),
                                 .y = y.data_ptr(),
                                 .statistics = statistics.data_ptr<float>(),
                                 .rows = rows,
                                 .dim = dim,
                                 .eps = static_cast<float>(eps),
                                 .type = element_of(x.scalar_type()),
                                 .y_type = element_of(dtype)});
    ctx->save_for_backward({x, weight, bias, statistics});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &bias = saved[2];
    // Outside the guard: .grad() is autograd's.
    const auto weight_sink = autograd::gradient_sink(weight),
               bias_sink = autograd::gradient_sink(bias);
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto grad = grads[0].contiguous();
    const int64_t dim = x.size(-1);
    variable_list out(5);
    out[0] = at::empty_like(x);
    const Observed run("tessera::layer_norm_backward",
                       {grad, x, weight, saved[3], out[0], weight, bias});
    const auto sums =
        fused_kernels(x).layer_norm_grad({.grad = grad.const_data_ptr(),
                                          .x = x.const_data_ptr(),
                                          .weight = weight.const_data_ptr(),
                                          .statistics = saved[3].const_data_ptr<float>(),
                                          .grad_x = out[0].data_ptr(),
                                          .rows = x.numel() / dim,
                                          .dim = dim,
                                          .type = element_of(x.scalar_type()),
                                          .grad_type = element_of(grad.scalar_type())},
                                         x.device());
    if (ctx->needs_input_grad(1)) {
      out[1] = autograd::hand_over(weight_sink, sums[0], weight.scalar_type());
    }
    if (ctx->needs_input_grad(2)) {
      out[2] = autograd::hand_over(bias_sink, sums[1], bias.scalar_type());
    }
    return out;
  }
};

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1) &&
                        bias.sizes() == weight.sizes(),
                    "layer_norm: expected weight and bias [", x.dim() >= 1 ? x.size(-1) : 0,
                    "], got ", weight.sizes(), " and ", bias.sizes());
  if (!can_fuse({x, weight, bias}) || x.numel() == 0) {
    return at::layer_norm(x, weight.sizes(), weight, bias, eps);
  }
  return autograd::apply<LayerNorm>(x.contiguous(), weight.contiguous(), bias.contiguous(), eps,
                                    norm_result(x));
}

}  // namespace tessera::kernels
