#include "tessera/kernels/router.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/apply.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/optional_tensor.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor in_float(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

struct RouterLogits : torch::autograd::Function<RouterLogits> {
  /// `bias`: one or none.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            at::TensorList bias) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, weight, bias.empty() ? at::Tensor() : bias[0]});
    auto logits =
        multiply_into({}, in_float(x), in_float(weight).t(), x.options().dtype(at::kFloat));
    return bias.empty() ? logits : logits.add_(in_float(bias[0]));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &bias = saved[2];
    // Outside the guard: .grad() is autograd's.
    const auto sink = autograd::gradient_sink(weight);
    const auto bias_sink = bias.defined() ? autograd::gradient_sink(bias) : bias;
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto grad = grads[0].contiguous();
    variable_list out(bias.defined() ? 3 : 2);
    if (ctx->needs_input_grad(0)) {
      out[0] = multiply_into({}, grad, in_float(weight), grad.options()).to(x.scalar_type());
    }
    if (ctx->needs_input_grad(1)) {
      const auto product = multiply_into({}, grad.t(), in_float(x), grad.options());
      out[1] = autograd::hand_over(sink, product, weight.scalar_type());
    }
    if (bias.defined() && bias.requires_grad()) {
      out[2] = autograd::hand_over(bias_sink, grad.sum(0), bias.scalar_type());
    }
    return out;
  }
};

}  // namespace

at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  TORCH_CHECK_VALUE(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1),
                    "router_logits: expected x [N, D] and weight [E, D], got ", x.sizes(), " and ",
                    weight.sizes());
  return autograd::apply<RouterLogits>(x, weight, list_of(bias));
}

}  // namespace tessera::kernels
