// What an autograd function keeps from its forward to its backward beside tensors and numbers.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace tessera::autograd {

template <typename Value>
struct Held : torch::CustomClassHolder {
  explicit Held(Value value) : value(std::move(value)) {}
  Value value;
};

/// Keeps `value` as `name` for as long as the graph has this call. Tensors belong in
/// save_for_backward, which notices changes in place and frees them with the graph's buffers.
template <typename Value>
void hold(torch::autograd::AutogradContext* context, const char* name, Value value) {
  context->saved_data[name] =
      c10::IValue::make_capsule(c10::make_intrusive<Held<Value>>(std::move(value)));
}

/// What is kept as `name`, which must have been given as a Value; null if nothing is.
template <typename Value>
const Value* held(const torch::autograd::AutogradContext* context, const char* name) {
  const auto found = context->saved_data.find(name);
  if (found == context->saved_data.end()) return nullptr;
  return &static_cast<const Held<Value>&>(*found->second.toCapsule()).value;
}

}  // namespace tessera::autograd
