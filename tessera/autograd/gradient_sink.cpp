#include "tessera/autograd/gradient_sink.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::autograd {

at::Tensor gradient_sink(const at::Tensor& parameter) {
  if (!parameter.defined() || !parameter.is_leaf() || !parameter.requires_grad()) return {};
  // autograd::grad and backward(inputs) leave .grad() of what they do not name alone.
  if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) return {};
  // A hook of the parameter's is to see, and may replace, the gradient.
  if (!torch::autograd::impl::hooks(parameter).empty()) return {};
  const auto& grad = parameter.grad();
  const bool fits =
      grad.defined() && grad.is_contiguous() && grad.sizes() == parameter.sizes() &&
      grad.device() == parameter.device() &&
      (grad.scalar_type() == parameter.scalar_type() ||
       (grad.scalar_type() == at::kFloat && at::isReducedFloatingType(parameter.scalar_type())));
  if (!fits) return {};
  grad.unsafeGetTensorImpl()->bump_version();  // as what adds to it in place does
  return grad;
}

at::Tensor hand_over(at::Tensor sink, const at::Tensor& gradient, at::ScalarType dtype) {
  if (!sink.defined()) return gradient.to(dtype);
  sink.add_(gradient);
  return {};
}

}  // namespace tessera::autograd
