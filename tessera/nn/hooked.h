// Modules that other parts of Tessera can attach to: the first of the three mechanisms (docs/architecture.md).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <functional>
#include <utility>
#include <vector>

namespace tessera::nn {

/// What runs around one call of a module. Every member may be empty. A call is one forward and, if its output took part
/// in a loss, one backward; calls may be nested and repeated (micro-batches).
struct Hooks {
  std::function<void()> before_forward;
  std::function<void()> after_forward;   ///< only of a call whose output needs a gradient is a backward expected
  std::function<void()> before_backward; ///< the gradient of the output is known
  std::function<void()> after_backward;  ///< every gradient of the module's parameters from this call is complete
};

/// A module that hooks can be attached to. Derive the implementation from it and make the holder with `Hooked`:
///
///     struct BlockImpl : nn::Hookable { torch::Tensor forward(const torch::Tensor& x); ... };
///     using Block = nn::Hooked<BlockImpl>;
///
/// `TORCH_MODULE` holders call `forward` statically, so that nothing can be attached to them.
class Hookable : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  void add_hooks(Hooks hooks) { hooks_.push_back(std::move(hooks)); }
  const std::vector<Hooks>& hooks() const { return hooks_; }

 private:
  std::vector<Hooks> hooks_;
};

namespace detail {
/// The identity on `inputs` whose backward, after that of all that was computed from them, runs the after-backward hooks.
/// When no input needs a gradient, the hooks run at the end of the whole backward instead.
void watch_inputs(Hookable& module, std::vector<torch::Tensor*> inputs, bool& watched);
torch::Tensor watch_output(Hookable& module, const torch::Tensor& output, bool inputs_watched);
}  // namespace detail

/// The holder of a Hookable: as torch::nn::ModuleHolder, but calling it runs the hooks around `forward`. Tensor arguments
/// are taken by value; the result is one tensor. Without hooks a call costs one comparison more than a plain call.
template <typename Impl>
class Hooked : public torch::nn::ModuleHolder<Impl> {
 public:
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;
  using torch::nn::ModuleHolder<Impl>::get;

  template <typename... Args>
  torch::Tensor operator()(Args... args) {
    Impl& module = *get();
    if (module.hooks().empty()) return module.forward(args...);
    for (const auto& hooks : module.hooks()) {
      if (hooks.before_forward) hooks.before_forward();
    }
    bool watched = false;
    std::vector<torch::Tensor*> inputs;
    (collect(inputs, args), ...);
    detail::watch_inputs(module, std::move(inputs), watched);
    auto output = detail::watch_output(module, module.forward(args...), watched);
    for (const auto& hooks : module.hooks()) {
      if (hooks.after_forward) hooks.after_forward();
    }
    return output;
  }

 private:
  static void collect(std::vector<torch::Tensor*>& inputs, torch::Tensor& tensor) { inputs.push_back(&tensor); }
  template <typename Other>
  static void collect(std::vector<torch::Tensor*>&, const Other&) {}
};

}  // namespace tessera::nn
