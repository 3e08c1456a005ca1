#include "tessera/nn/hooked.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>

#include "tessera/kernels/held.h"
#include "tessera/nn/recomputation.h"

namespace tessera::nn {

void Hookable::add_hooks(Hooks hooks) {
  const auto has_around = [](const Hooks& other) { return other.around != nullptr; };
  TORCH_CHECK_VALUE(!hooks.around || std::ranges::none_of(hooks_, has_around), name(),
                    ": expected one hook around its forward at most; checkpoint a module once");
  hooks_.push_back(std::move(hooks));
}

namespace detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Does the backward that is under way go to all leaves? autograd::grad and one with chosen inputs
/// do not: they complete no gradient.
bool reaches_all_leaves() {
  return torch::autograd::Engine::get_default_engine().is_checkpoint_valid();
}

/// A module that a graph refers to but does not keep: it may keep the graph (a member tensor).
class ModuleOfGraph {
 public:
  explicit ModuleOfGraph(Hookable& module)
      : module_(&module), owner_(module.weak_from_this()), owned_(!owner_.expired()) {}

  /// ValueError if it was destroyed. One that nobody shares (on the stack) is not watched.
  Hookable& operator*() const {
    TORCH_CHECK_VALUE(!owned_ || !owner_.expired(),
                      "backward: expected the module that computed the forward, which was "
                      "destroyed; keep the model until its backward is over");
    return *module_;
  }

 private:
  Hookable* module_;
  std::weak_ptr<torch::nn::Module> owner_;
  bool owned_;
};

void run_after_backward(const ModuleOfGraph& module) {
  for (const auto& hooks : (*module).hooks()) {
    if (hooks.after_backward) hooks.after_backward();
  }
}

// One node for all inputs: autograd runs it once, when the gradients of all of them are complete.
// Nodes made later run earlier (sequence numbers) and the accumulation of parameter gradients runs
// at once, so all of the module's own gradients are complete by then.
struct WatchInputs : torch::autograd::Function<WatchInputs> {
  static variable_list forward(AutogradContext* context, const ModuleOfGraph& module,
                               at::TensorList inputs) {
    kernels::hold(context, "module", module);
    context->set_materialize_grads(false);
    variable_list outputs;
    outputs.reserve(inputs.size());
    for (const auto& input : inputs) outputs.push_back(input.view_as(input));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (reaches_all_leaves()) {
      run_after_backward(*kernels::held<ModuleOfGraph>(context, "module"));
    }
    gradients.insert(gradients.begin(), torch::Tensor());  // of `module`
    return gradients;
  }
};

/// Watches the arguments that need a gradient; whether there is one.
bool watch_inputs(Hookable& module, std::vector<torch::Tensor*> inputs) {
  if (!torch::GradMode::is_enabled()) return false;
  std::erase_if(inputs,
                [](const auto* input) { return !input->defined() || !input->requires_grad(); });
  if (inputs.empty()) return false;
  variable_list values;
  for (const auto* input : inputs) values.push_back(*input);
  values = WatchInputs::apply(ModuleOfGraph(module), at::TensorList(values));
  for (size_t i = 0; i < inputs.size(); ++i) *inputs[i] = values[i];
  return true;
}

/// Without a watched input the hooks after backward run at the end of the whole backward.
void watch_output(Hookable& module, const torch::Tensor& output, bool inputs_watched) {
  output.register_hook(
      [module = ModuleOfGraph(module), inputs_watched](const torch::Tensor& gradient) {
        for (const auto& hooks : (*module).hooks()) {
          if (hooks.before_backward) hooks.before_backward();
        }
        if (!inputs_watched && reaches_all_leaves()) {
          torch::autograd::Engine::get_default_engine().queue_callback(
              [module] { run_after_backward(module); });
        }
        return gradient;
      });
}

torch::Tensor run_forward(const Hookable& module, const std::shared_ptr<Call>& call) {
  for (const auto& hooks : module.hooks()) {
    if (hooks.around) return hooks.around(call);
  }
  return call->forward();
}

}  // namespace

torch::Tensor call_with_hooks(Hookable& module, const std::shared_ptr<Call>& call) {
  Recomputation::count_call();
  for (const auto& hooks : module.hooks()) {
    if (hooks.before_forward) hooks.before_forward();
  }
  const bool inputs_watched = watch_inputs(module, call->inputs);
  for (const auto& hooks : module.hooks()) {
    if (hooks.replace_first_input) hooks.replace_first_input(*call->inputs.at(0));
    if (!hooks.cast_input) continue;
    for (auto* input : call->inputs) {
      if (input->defined()) hooks.cast_input(*input);
    }
  }
  auto output = run_forward(module, call);
  for (const auto& hooks : module.hooks()) {
    if (hooks.cast_output) hooks.cast_output(output);
  }
  const bool backward_follows = output.requires_grad();
  if (backward_follows) watch_output(module, output, inputs_watched);
  for (const auto& hooks : module.hooks()) {
    if (hooks.after_forward) hooks.after_forward(backward_follows);
  }
  return output;
}

}  // namespace detail
}  // namespace tessera::nn
