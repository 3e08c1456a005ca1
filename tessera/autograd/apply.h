// Calls of autograd functions.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace tessera::autograd {

/// F::apply(args..), and where gradients are off (a text is made, a model evaluated) F::forward
/// alone: a graph's node with what it would know of each tensor takes some microseconds, as long as a
/// small operator. `F`: a torch::autograd::Function.
template <typename F, typename... Args>
auto apply(Args&&... args) {
  using Result = decltype(F::apply(std::forward<Args>(args)...));
  if (at::GradMode::is_enabled()) return Result(F::apply(std::forward<Args>(args)...));
  torch::autograd::AutogradContext without_graph;
  return Result(F::forward(&without_graph, std::forward<Args>(args)...));
}

}  // namespace tessera::autograd
