#include "tessera/autograd/gradient_sink.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace tessera::autograd {
namespace {

/// What an unwritten gradient's TensorImpl holds: the mark lives and dies with the tensor.
struct Unwritten : c10::BackendMeta {
  /// A copy of the tensor's metadata (detach) is another tensor.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& /*of_source*/) const override {
    return {};
  }
};

const c10::intrusive_ptr<c10::BackendMeta>& mark() {
  static const c10::intrusive_ptr<c10::BackendMeta> mark = c10::make_intrusive<Unwritten>();
  return mark;
}

bool is_unwritten(const at::Tensor& gradient) {
  return gradient.unsafeGetTensorImpl()->get_backend_meta() == mark().get();
}

}  // namespace

void set_unwritten(const at::Tensor& gradient) {
  gradient.unsafeGetTensorImpl()->set_backend_meta(mark());
}

bool adds_to(const at::Tensor& gradient) {
  if (!is_unwritten(gradient)) return true;
  gradient.unsafeGetTensorImpl()->set_backend_meta({});
  return false;
}

bool adds_to(at::TensorList parts) {
  if (std::ranges::all_of(parts, is_unwritten)) {
    for (const auto& part : parts) adds_to(part);
    return false;
  }
  for (const auto& part : parts) fill_unwritten(part);
  return true;
}

void fill_unwritten(const at::Tensor& gradient) {
  if (!adds_to(gradient)) gradient.zero_();
}

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
  if (adds_to(sink)) {
    sink.add_(gradient);
  } else {
    sink.copy_(gradient);
  }
  return {};
}

}  // namespace tessera::autograd
