#include "tessera/kernels/router.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/cpu/matmul.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor in_float(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

struct RouterLogits : torch::autograd::Function<RouterLogits> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, weight});
    return multiply_into({}, in_float(x), in_float(weight).t(), x.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const auto sink = autograd::gradient_sink(weight);  // outside the guard: .grad() is autograd's
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto grad = grads[0].contiguous();
    variable_list out(2);
    if (ctx->needs_input_grad(0)) {
      out[0] = multiply_into({}, grad, in_float(weight), grad.options()).to(x.scalar_type());
    }
    if (ctx->needs_input_grad(1)) {
      const auto product = multiply_into({}, grad.t(), in_float(x), grad.options());
      out[1] = autograd::hand_over(sink, product, weight.scalar_type());
    }
    return out;
  }
};

}  // namespace

at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK_VALUE(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1),
                    "router_logits: expected x [N, D] and weight [E, D], got ", x.sizes(), " and ",
                    weight.sizes());
  return RouterLogits::apply(x, weight);
}

}  // namespace tessera::kernels
