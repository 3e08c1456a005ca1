#include "tessera/nn/hooked.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "tessera/autograd/held.h"
#include "tessera/nn/recomputation.h"

namespace tessera::nn {

void Hookable::add_hooks(Hooks hooks) {
  const auto has_around = [](const Hooks& other) { return other.around != nullptr; };
  TORCH_CHECK_VALUE(!hooks.around || std::ranges::none_of(hooks_, has_around), name(),
                    ": expected one hook around its forward at most; checkpoint a module once");
  hooks_.push_back(std::move(hooks));
}

void Hookable::remove_hooks(const std::function<bool(const Hooks& hooks)>& which) {
  std::erase_if(hooks_, which);
}

namespace {

/// A call under way on this thread, and those around it.
struct Running {
  explicit Running(Call& call) : call(call), outer(std::exchange(innermost, this)) {}
  ~Running() { innermost = outer; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  Call& call;
  Running* outer;
  static thread_local Running* innermost;
};
thread_local Running* Running::innermost = nullptr;

/// `tensor`, which others hold too, becomes a result of what computed `source`.
void take_history(const torch::Tensor& tensor, const torch::Tensor& source) {
  torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::impl::gradient_edge(source));
}

}  // namespace

void Call::drop_result() {
  reset();
  outputs.clear();
  added_outputs.clear();
}

void Call::forward() {
  drop_result();
  const Running running(*this);
  compute();
}

torch::Tensor add_output(const torch::Tensor& tensor) {
  if (Running::innermost == nullptr || !tensor.defined()) return tensor;
  const auto added = tensor.detach();
  if (tensor.requires_grad()) take_history(added, tensor);
  for (auto* running = Running::innermost; running != nullptr; running = running->outer) {
    running->call.added_outputs.push_back(added);
  }
  return added;
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

/// The same values as another tensor, of which autograd knows nothing yet. Not a view, so that the
/// module or its caller may change it in place; the version is that of `tensor`.
torch::Tensor stand_in(const torch::Tensor& tensor) { return tensor.detach(); }

// One node for all inputs: autograd runs it once, when the gradients of all of them are complete.
// Nodes made later run earlier (sequence numbers) and the accumulation of parameter gradients runs
// at once, so all of the module's own gradients are complete by then.
struct WatchInputs : torch::autograd::Function<WatchInputs> {
  static variable_list forward(AutogradContext* context, const ModuleOfGraph& module,
                               at::TensorList inputs) {
    autograd::hold(context, "module", module);
    context->set_materialize_grads(false);
    variable_list outputs;
    outputs.reserve(inputs.size());
    for (const auto& input : inputs) outputs.push_back(stand_in(input));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (reaches_all_leaves()) {
      run_after_backward(*autograd::held<ModuleOfGraph>(context, "module"));
    }
    gradients.insert(gradients.begin(), torch::Tensor());  // of `module`
    return gradients;
  }
};

/// The arguments of a call that need a gradient, and what stands in for them.
class WatchedInputs {
 public:
  WatchedInputs(Hookable& module, const TensorPointers& inputs) {
    if (!torch::GradMode::is_enabled()) return;
    TensorPointers places;
    for (auto* input : inputs) {
      if (!input->defined() || !input->requires_grad()) continue;
      places.push_back(input);
      originals_.push_back(*input);
    }
    if (originals_.empty()) return;
    watched_ = WatchInputs::apply(ModuleOfGraph(module), at::TensorList(originals_));
    node_ = watched_.front().grad_fn();
    for (size_t i = 0; i < places.size(); ++i) *places[i] = watched_[i];
  }

  bool any() const { return !watched_.empty(); }

  /// The module changed a stand-in in place (relu_ on an argument): the caller's tensor, which has
  /// the same memory, becomes its result as if it had been changed itself.
  void pass_on_changes() const {
    for (size_t i = 0; i < watched_.size(); ++i) {
      if (watched_[i].grad_fn() == node_) continue;
      auto version = originals_[i].unsafeGetTensorImpl()->version_counter();
      const auto before = version.current_version();
      originals_[i].copy_(watched_[i]);  // moves no memory
      version.set_version(before);       // what the module saved since is as it was
    }
  }

 private:
  variable_list originals_, watched_;
  decltype(torch::autograd::Edge::function) node_;  // the pointer's type changed after 2.11
};

/// The gradient of an output is known. Without a watched input the hooks after backward run at the
/// end of the whole backward.
void run_before_backward(const ModuleOfGraph& module, bool inputs_watched) {
  for (const auto& hooks : (*module).hooks()) {
    if (hooks.before_backward) hooks.before_backward();
  }
  if (!inputs_watched && reaches_all_leaves()) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [module] { run_after_backward(module); });
  }
}

// One node for several outputs, run when the gradients of all of them are known.
struct WatchOutputs : torch::autograd::Function<WatchOutputs> {
  static variable_list forward(AutogradContext* context, const ModuleOfGraph& module,
                               bool inputs_watched, at::TensorList outputs) {
    autograd::hold(context, "module", module);
    autograd::hold(context, "inputs_watched", inputs_watched);
    context->set_materialize_grads(false);
    variable_list watched;
    watched.reserve(outputs.size());
    for (const auto& output : outputs) {
      // autograd refuses to change a view of several in place, as it did before
      watched.push_back(output.is_view() ? output.view_as(output) : stand_in(output));
    }
    return watched;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    run_before_backward(*autograd::held<ModuleOfGraph>(context, "module"),
                        *autograd::held<bool>(context, "inputs_watched"));
    gradients.insert(gradients.begin(), 2, torch::Tensor());  // of `module`, `inputs_watched`
    return gradients;
  }
};

/// Watches the outputs that need a gradient; whether there is one.
bool watch_outputs(Hookable& module, const Call& call, bool inputs_watched) {
  const auto needs_gradient = [](const torch::Tensor& output) {
    return output.defined() && output.requires_grad();
  };
  variable_list outputs;  // each once: one tensor in two places of a result stays one
  const auto add = [&](const torch::Tensor& output) {
    const auto same = [&](const auto& other) { return other.is_same(output); };
    if (needs_gradient(output) && std::ranges::none_of(outputs, same)) outputs.push_back(output);
  };
  for (const auto* output : call.outputs) add(*output);
  for (const auto& output : call.added_outputs) add(output);
  if (outputs.empty()) return false;
  const ModuleOfGraph of_graph(module);
  if (outputs.size() == 1) {
    outputs[0].register_hook([of_graph, inputs_watched](const torch::Tensor& gradient) {
      run_before_backward(of_graph, inputs_watched);
      return gradient;
    });
    return true;
  }
  const auto watched = WatchOutputs::apply(of_graph, inputs_watched, at::TensorList(outputs));
  const auto watched_of = [&](const torch::Tensor& output) {
    const auto same = [&](const auto& other) { return other.is_same(output); };
    return watched[static_cast<size_t>(std::ranges::find_if(outputs, same) - outputs.begin())];
  };
  for (auto* output : call.outputs) {
    if (needs_gradient(*output)) *output = watched_of(*output);
  }
  for (const auto& output : call.added_outputs) {
    if (needs_gradient(output)) take_history(output, watched_of(output));
  }
  return true;
}

void run_forward(const Hookable& module, const std::shared_ptr<Call>& call) {
  for (const auto& hooks : module.hooks()) {
    if (hooks.around) return hooks.around(call);
  }
  call->forward();
}

}  // namespace

void call_with_hooks(Hookable& module, const std::shared_ptr<Call>& call) {
  Recomputation::count_call();
  for (const auto& hooks : module.hooks()) {
    if (hooks.before_forward) hooks.before_forward();
  }
  const WatchedInputs inputs(module, call->inputs);
  for (const auto& hooks : module.hooks()) {
    if (hooks.replace_first_input) hooks.replace_first_input(*call->inputs.at(0));
    if (!hooks.replace_input) continue;
    for (auto* input : call->inputs) {
      if (input->defined()) hooks.replace_input(*input);
    }
  }
  run_forward(module, call);
  inputs.pass_on_changes();
  for (const auto& hooks : module.hooks()) {
    if (!hooks.replace_output) continue;
    for (auto* output : call->outputs) {
      if (output->defined()) hooks.replace_output(*output);
    }
    for (auto& output : call->added_outputs) {
      // It stays the tensor that the module keeps, but may get other memory: that of a parameter
      // goes.
      auto kept = output;
      hooks.replace_output(kept);
      const bool copied = !kept.is_same(output) && kept.scalar_type() == output.scalar_type();
      if (copied) output.set_data(kept.detach());
    }
  }
  const bool backward_follows = watch_outputs(module, *call, inputs.any());
  for (const auto& hooks : module.hooks()) {
    if (hooks.after_forward) hooks.after_forward(backward_follows);
  }
}

}  // namespace detail
}  // namespace tessera::nn
