// Modules that other parts of Tessera can attach to: the first of the three mechanisms
// (docs/architecture.md).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera::nn {

/// One call of a module: its arguments and its forward. `forward` uses the tensors that `inputs`
/// point to, which may be replaced before; it may run more than once. The arguments live as long as
/// the Call.
struct Call {
  std::vector<torch::Tensor*> inputs;  ///< the tensor arguments in order, undefined ones included
  std::function<torch::Tensor()> forward;
};

/// What runs around one call of a module. Every member may be empty. A call is one forward and, if
/// its output took part in a loss, one backward; calls may be nested and repeated (micro-batches).
struct Hooks {
  std::function<void()> before_forward;
  /// `backward_follows`: the output needs a gradient, so that a backward of this call is expected.
  /// Inside of a checkpointed module's first forward it never does; nn/recomputation.h tells.
  std::function<void(bool backward_follows)> after_forward;
  std::function<void()> before_backward;  ///< the gradient of the output is known
  /// Every gradient of the module's parameters from this call is complete. Not in autograd::grad or
  /// a backward with chosen inputs.
  std::function<void()> after_backward;
  std::function<void(torch::Tensor& first)> replace_first_input;  ///< of the tensor arguments
  std::function<void(torch::Tensor& input)> cast_input;  ///< may replace a defined tensor argument
  std::function<void(torch::Tensor& output)> cast_output;  ///< may replace the result
  /// Instead of `call->forward()`: what computes the output, now and perhaps once more during
  /// backward (activation checkpointing). At most one of a module's hooks has it.
  std::function<torch::Tensor(const std::shared_ptr<Call>& call)> around;
};

/// A module that hooks can be attached to. Derive the implementation from it and make the holder
/// with `Hooked`:
///
///     struct BlockImpl : nn::Hookable { torch::Tensor forward(const torch::Tensor& x); ... };
///     using Block = nn::Hooked<BlockImpl>;
///
/// `TORCH_MODULE` holders call `forward` statically, so that nothing can be attached to them.
class Hookable : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  void add_hooks(Hooks hooks);
  const std::vector<Hooks>& hooks() const { return hooks_; }

  /// True of a module whose forward already adds to its parameters' .grad() (head and loss in one).
  virtual bool forward_computes_gradients() const { return false; }

  /// Parameters that it uses and another module has (tied).
  virtual std::vector<torch::Tensor> borrowed_parameters() const { return {}; }

 private:
  std::vector<Hooks> hooks_;
};

namespace detail {
/// Runs the hooks of `module` around `call`.
torch::Tensor call_with_hooks(Hookable& module, const std::shared_ptr<Call>& call);
}  // namespace detail

/// The holder of a Hookable: as torch::nn::ModuleHolder, but calling it runs the hooks around
/// `forward`. Tensor arguments are taken by value; the result is one tensor. Without hooks a call
/// costs one comparison more than a plain call.
template <typename Impl>
class Hooked : public torch::nn::ModuleHolder<Impl> {
 public:
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;
  using torch::nn::ModuleHolder<Impl>::get;

  template <typename... Args>
  torch::Tensor operator()(Args... args) {
    Impl& module = *get();
    if (module.hooks().empty()) return module.forward(args...);
    struct Held : Call {
      explicit Held(Args... args) : arguments(std::move(args)...) {}
      std::tuple<Args...> arguments;
    };
    auto held = std::make_shared<Held>(std::move(args)...);
    std::apply([&](auto&... argument) { (collect(held->inputs, argument), ...); }, held->arguments);
    held->forward = [&module, arguments = &held->arguments] {
      return std::apply([&](auto&... argument) { return module.forward(argument...); }, *arguments);
    };
    return detail::call_with_hooks(module, held);
  }

 private:
  static void collect(std::vector<torch::Tensor*>& inputs, torch::Tensor& tensor) {
    inputs.push_back(&tensor);
  }
  template <typename Other>
  static void collect(std::vector<torch::Tensor*>&, const Other&) {}
};

}  // namespace tessera::nn
