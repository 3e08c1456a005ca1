#include "tessera/nn/hooked.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

namespace tessera::nn::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void run_after_backward(Hookable& module) {
  for (const auto& hooks : module.hooks()) {
    if (hooks.after_backward) hooks.after_backward();
  }
}

// One node for all inputs: autograd runs it once, when the gradients of all of them are complete. Nodes made later run
// earlier (sequence numbers) and the accumulation of parameter gradients runs at once, so all of the module's own
// gradients are complete by then.
struct WatchInputs : torch::autograd::Function<WatchInputs> {
  static variable_list forward(AutogradContext* context, Hookable* module, at::TensorList inputs) {
    context->saved_data["module"] = reinterpret_cast<int64_t>(module);
    context->set_materialize_grads(false);
    variable_list outputs;
    outputs.reserve(inputs.size());
    for (const auto& input : inputs) outputs.push_back(input.view_as(input));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    run_after_backward(*reinterpret_cast<Hookable*>(context->saved_data["module"].toInt()));
    gradients.insert(gradients.begin(), torch::Tensor());  // of `module`
    return gradients;
  }
};

}  // namespace

void watch_inputs(Hookable& module, std::vector<torch::Tensor*> inputs, bool& watched) {
  if (!torch::GradMode::is_enabled()) return;
  std::erase_if(inputs, [](const auto* input) { return !input->defined() || !input->requires_grad(); });
  if (inputs.empty()) return;
  variable_list values;
  for (const auto* input : inputs) values.push_back(*input);
  values = WatchInputs::apply(&module, at::TensorList(values));
  for (size_t i = 0; i < inputs.size(); ++i) *inputs[i] = values[i];
  watched = true;
}

torch::Tensor watch_output(Hookable& module, const torch::Tensor& output, bool inputs_watched) {
  if (!output.requires_grad()) return output;
  output.register_hook([&module, inputs_watched](const torch::Tensor& gradient) {
    for (const auto& hooks : module.hooks()) {
      if (hooks.before_backward) hooks.before_backward();
    }
    if (!inputs_watched) {
      torch::autograd::Engine::get_default_engine().queue_callback([&module] { run_after_backward(module); });
    }
    return gradient;
  });
  return output;
}

}  // namespace tessera::nn::detail
