#include "tessera/kernels/activation.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "tessera/autograd/apply.h"
#include "tessera/kernels/adjacent.h"
#include "tessera/kernels/fused.h"
#include "tessera/kernels/observed.h"
#include "tessera/kernels/reference.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Memory for the gradients of gate and up: side by side where these are, as one product takes them
/// (kernels/linears.h).
std::pair<at::Tensor, at::Tensor> memory_like(const at::Tensor& gate, const at::Tensor& up) {
  const int64_t dim = gate.size(-1);
  if (!side_by_side({gate.reshape({-1, dim}), up.reshape({-1, dim})}).defined()) {
    return {at::empty(gate.sizes(), gate.options()), at::empty(up.sizes(), up.options())};
  }
  auto sizes = gate.sizes().vec();
  sizes.back() = 2 * dim;
  const auto both = at::empty(sizes, gate.options());
  return {both.narrow(-1, 0, dim), both.narrow(-1, dim, dim)};
}

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up,
                            const std::optional<GateClamp>& clamp) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({gate, up});
    if (clamp) {
      ctx->saved_data["scale"] = static_cast<double>(clamp->scale);
      ctx->saved_data["limit"] = static_cast<double>(clamp->limit);
    }
    const auto g = rows_of(gate);
    const auto u = rows_of(up);
    auto y = at::empty(gate.sizes(), gate.options());
    const Observed run("tessera::swiglu", {gate, up, y});
    fused_kernels(gate).swiglu({.gate = g.tensor.const_data_ptr(),
                                .up = u.tensor.const_data_ptr(),
                                .y = y.data_ptr(),
                                .rows = g.rows,
                                .dim = g.dim,
                                .gate_stride = g.stride,
                                .up_stride = u.stride,
                                .clamped = clamp.has_value(),
                                .clamp = clamp.value_or(GateClamp()),
                                .type = element_of(gate.scalar_type())});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto saved = ctx->get_saved_variables();
    const auto g = rows_of(saved[0]);
    const auto u = rows_of(saved[1]);
    const auto grad = grads[0].contiguous();
    const auto [grad_gate, grad_up] = memory_like(saved[0], saved[1]);
    const auto number = [ctx](const char* name) {
      return static_cast<float>(ctx->saved_data[name].toDouble());
    };
    const bool clamped = ctx->saved_data.count("limit") > 0;
    const Observed run("tessera::swiglu_backward", {grad, saved[0], saved[1], grad_gate, grad_up});
    fused_kernels(grad).swiglu_grad(
        {.grad = grad.const_data_ptr(),
         .gate = g.tensor.const_data_ptr(),
         .up = u.tensor.const_data_ptr(),
         .grad_gate = grad_gate.data_ptr(),
         .grad_up = grad_up.data_ptr(),
         .rows = g.rows,
         .dim = g.dim,
         .gate_stride = g.stride,
         .up_stride = u.stride,
         .grad_stride = rows_of(grad_gate).stride,
         .clamped = clamped,
         .clamp = clamped ? GateClamp{number("scale"), number("limit")} : GateClamp(),
         .type = element_of(grad.scalar_type())});
    return {grad_gate, grad_up, {}};
  }
};

struct GeluTanh : torch::autograd::Function<GeluTanh> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x});
    auto y = at::empty_like(x);
    const Observed run("tessera::gelu_tanh", {x, y});
    fused_kernels(x).gelu_tanh({.x = x.const_data_ptr(),
                                .grad = nullptr,
                                .y = y.data_ptr(),
                                .count = x.numel(),
                                .type = element_of(x.scalar_type())});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto x = ctx->get_saved_variables()[0];
    const auto grad = grads[0].contiguous();
    auto grad_x = at::empty_like(x);
    const Observed run("tessera::gelu_tanh_backward", {x, grad, grad_x});
    fused_kernels(x).gelu_tanh({.x = x.const_data_ptr(),
                                .grad = grad.const_data_ptr(),
                                .y = grad_x.data_ptr(),
                                .count = x.numel(),
                                .type = element_of(x.scalar_type())});
    return {grad_x};
  }
};

bool can_fuse_gated(const at::Tensor& gate, const at::Tensor& up) {
  return can_fuse({gate, up}) && gate.numel() > 0 && gate.dim() > 0;
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  TORCH_CHECK_VALUE(gate.sizes() == up.sizes(), "swiglu: expected up ", gate.sizes(), ", got ",
                    up.sizes());
  if (!can_fuse_gated(gate, up)) return swiglu_reference(gate, up);
  return autograd::apply<Swiglu>(gate, up, std::nullopt);
}

at::Tensor clamped_swiglu(const at::Tensor& gate, const at::Tensor& up, const GateClamp& clamp) {
  TORCH_CHECK_VALUE(gate.sizes() == up.sizes(), "clamped_swiglu: expected up ", gate.sizes(),
                    ", got ", up.sizes());
  if (!can_fuse_gated(gate, up)) return clamped_swiglu_reference(gate, up, clamp);
  return autograd::apply<Swiglu>(gate, up, std::optional(clamp));
}

at::Tensor gelu_tanh(const at::Tensor& x) {
  if (!can_fuse({x}) || x.numel() == 0) return gelu_tanh_reference(x);
  return autograd::apply<GeluTanh>(x.contiguous());
}

}  // namespace tessera::kernels
