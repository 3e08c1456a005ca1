#include "tessera/memory/activation_checkpointing.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "tessera/autograd/deferred_gradients.h"
#include "tessera/autograd/held.h"
#include "tessera/autograd/recompute.h"
#include "tessera/memory/forward_state.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/recomputation.h"

namespace tessera::memory {
namespace {

using autograd::Tape;
using autograd::TapeGuard;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// One call of a module, between its forward and its backward. Its tensors are not in here but
/// saved by autograd, which frees them with the graph and notices changes in place. Those that wait
/// elsewhere live as long, too: autograd saves a tensor that holds them.
struct Record {
  std::shared_ptr<nn::Call> call;
  std::vector<Tensor*> inputs;  ///< the defined ones of `call`
  std::vector<bool> needs_gradient;
  CheckpointOptions options;
  AutocastState autocast;
  std::optional<RandomState> random;  ///< before the forward, if that drew numbers
  std::optional<nn::RandomContext> context = nn::RandomScope::current();
  autograd::DeferredGradientsPtr deferred = autograd::DeferScope::current();
  std::vector<bool> goes_elsewhere;        ///< of the tensors kept; empty: none does
  std::weak_ptr<StoredTensors> elsewhere;  ///< those
  Tape tape;
  int64_t num_calls = 0;                        ///< of modules with hooks in the first forward
  const torch::autograd::Node* node = nullptr;  ///< of the call in the graph
};

/// A tensor without numbers that holds `stored`.
Tensor holder_of(const std::shared_ptr<StoredTensors>& stored) {
  return at::from_blob(
      stored.get(), {0}, [stored](void*) {}, at::kByte);
}

Tape tape_for(const CheckpointOptions& options) {
  using autograd::Keeps;
  const auto keeps = [&] {
    switch (options.mode) {
      case CheckpointMode::feed_forward:
        return Keeps::to_attention;
      case CheckpointMode::selective:
        return Keeps::all;
      case CheckpointMode::full:
      case CheckpointMode::none:
        return Keeps::nothing;
    }
    __builtin_unreachable();
  };
  return Tape(keeps(), options.drop_last_product);
}

/// What autograd is to save: the inputs, then what is on the tape.
variable_list kept(Record& record, at::TensorList inputs) {
  const auto products = record.tape.finish();
  variable_list tensors(inputs.begin(), inputs.end());
  tensors.insert(tensors.end(), products.begin(), products.end());
  if (!record.options.offload) return tensors;
  variable_list staying, going;
  for (size_t i = 0; i < tensors.size(); ++i) {
    // An argument without a gradient is a table that others hold as well.
    const bool goes = i >= inputs.size() || record.needs_gradient[i];
    (goes ? going : staying).push_back(tensors[i]);
    record.goes_elsewhere.push_back(goes);
  }
  const auto stored = record.options.offload->put(going);
  record.elsewhere = stored;
  staying.push_back(holder_of(stored));
  return staying;
}

/// The same again, from what autograd saved.
variable_list kept_again(const Record& record, variable_list saved) {
  if (record.goes_elsewhere.empty()) return saved;
  const auto returned = record.elsewhere.lock()->tensors();
  variable_list tensors;
  auto from_saved = saved.begin();
  auto from_elsewhere = returned.begin();
  for (const bool went : record.goes_elsewhere)
    tensors.push_back(went ? *from_elsewhere++ : *from_saved++);
  return tensors;
}

/// The tensors that a call gave, each once: its result's, then what it left elsewhere.
variable_list results(const nn::Call& call) {
  variable_list tensors;
  const auto add = [&](const Tensor& output) {
    const auto same = [&](const Tensor& other) { return other.is_same(output); };
    if (output.defined() && std::ranges::none_of(tensors, same)) tensors.push_back(output);
  };
  for (const auto* output : call.outputs) add(*output);
  for (const auto& output : call.added_outputs) add(output);
  return tensors;
}

/// The forward without a graph.
variable_list first_forward(Record& record, at::TensorList inputs) {
  std::vector<int64_t> versions;
  for (const auto& input : inputs) versions.push_back(input._version());
  auto random = RandomState::of(inputs.vec());
  const AutocastGuard autocast(record.autocast);
  std::optional<TapeGuard> guard;
  if (record.tape.is_needed()) guard.emplace(record.tape, TapeGuard::Use::record);
  const nn::Recomputation recomputation(nn::Recomputation::Forward::first);
  record.call->forward();
  record.num_calls = recomputation.num_calls();
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(inputs[i]._version() == versions[i],
                      "checkpoint: expected a module that leaves its arguments as they are, got a "
                      "change in place of tensor ",
                      i);
  }
  if (RandomState::of(inputs.vec()) != random) record.random = std::move(random);
  // What is returned may be the module's own (a buffer), or a view: it gets no history, a stand-in
  // does.
  auto stand_ins = results(*record.call);
  const auto num_added = record.call->added_outputs.size();
  for (size_t i = 0; i + num_added < stand_ins.size(); ++i) {
    const auto own = std::exchange(stand_ins[i], stand_ins[i].detach());
    for (auto* output : record.call->outputs) {
      if (output->is_same(own)) *output = stand_ins[i];
    }
  }
  return stand_ins;
}

/// The forward with a graph that begins at `leaves`, under the conditions of the first.
variable_list second_forward(Record& record, at::TensorList leaves) {
  const at::AutoGradMode with_graph(true);
  const AutocastGuard autocast(record.autocast);
  std::optional<RandomGuard> random;
  if (record.random) random.emplace(*record.random);
  const nn::RandomScope context(record.context);
  const autograd::DeferScope deferred(record.deferred);
  std::optional<TapeGuard> guard;
  if (record.tape.is_needed()) guard.emplace(record.tape, TapeGuard::Use::replay);
  for (size_t i = 0; i < leaves.size(); ++i) *record.inputs[i] = leaves[i];
  const nn::Recomputation recomputation(nn::Recomputation::Forward::second);
  record.call->forward();
  auto outputs = results(*record.call);
  record.call->drop_result();
  for (auto* input : record.inputs) *input = Tensor();
  TORCH_CHECK(recomputation.num_calls() == record.num_calls,
              "checkpoint: expected the recomputation to call the modules of the forward, ",
              record.num_calls, " times, got ", recomputation.num_calls(),
              "; a checkpointed module must do the same in both");
  TORCH_CHECK(!guard || record.tape.end(),
              "checkpoint: expected the recomputation to run the same products as the forward, got "
              "fewer; a checkpointed module must do the same in both");
  return outputs;
}

/// Is `node` behind one of the tensors?
bool leads_to(const variable_list& tensors, const torch::autograd::Node* node) {
  std::vector<const torch::autograd::Node*> open;
  std::unordered_set<const torch::autograd::Node*> seen;
  const auto visit = [&](const auto& next) {
    if (next && seen.insert(next.get()).second) open.push_back(next.get());
  };
  for (const auto& tensor : tensors) visit(tensor.grad_fn());
  while (!open.empty()) {
    const auto* current = open.back();
    open.pop_back();
    if (current == node) return true;
    for (const auto& edge : current->next_edges()) visit(edge.function);
  }
  return false;
}

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  /// `tensors`: the inputs of `record`, and perhaps one that only makes the output need a gradient.
  static variable_list forward(AutogradContext* context, const std::shared_ptr<Record>& record,
                               at::TensorList tensors) {
    const auto inputs = tensors.slice(0, record->inputs.size());
    auto outputs = first_forward(*record, inputs);
    context->save_for_backward(kept(*record, inputs));
    autograd::hold(context, "record", record);
    context->set_materialize_grads(false);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK_VALUE(!at::GradMode::is_enabled(),
                      "checkpoint: expected one backward, got create_graph = true; a checkpointed "
                      "module is not twice differentiable");
    TORCH_CHECK_VALUE(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
                      "checkpoint: expected a backward to all leaves, got autograd::grad or one "
                      "with chosen inputs; call backward() or set mode = none");
    Record& record = **autograd::held<std::shared_ptr<Record>>(context, "record");
    const auto num_inputs = record.inputs.size();
    variable_list out(num_inputs + 2);  // of `record`, the inputs, perhaps the tensor added
    const auto defined = [](const Tensor& gradient) { return gradient.defined(); };
    if (std::ranges::none_of(gradients, defined)) return out;

    auto leaves = kept_again(record, context->get_saved_variables());
    for (size_t i = 0; i < leaves.size(); ++i) {
      leaves[i] = leaves[i].detach();
      if (i < num_inputs) leaves[i].requires_grad_(record.needs_gradient[i]);
    }
    record.tape.begin({leaves.begin() + static_cast<std::ptrdiff_t>(num_inputs), leaves.end()});
    leaves.resize(num_inputs);
    const auto outputs = second_forward(record, leaves);
    TORCH_CHECK_VALUE(
        !leads_to(outputs, record.node),
        "checkpoint: expected a module that takes what needs a gradient in its "
        "arguments, got a tensor of its own that was computed by a call of it; pass it "
        "as an argument, or detach() it");
    TORCH_CHECK(outputs.size() == gradients.size(),
                "checkpoint: expected the recomputation to give the tensors of the forward, ",
                gradients.size(), ", got ", outputs.size(),
                "; a checkpointed module must do the same in both");
    variable_list roots, of_roots;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]), of_roots.push_back(gradients[i]);
    }
    // Not autograd::grad: operators add gradients of parameters straight to where they are kept.
    if (!roots.empty()) torch::autograd::backward(roots, of_roots);
    for (size_t i = 0; i < num_inputs; ++i) out[1 + i] = leaves[i].grad();
    return out;
  }
};

bool has_trained_parameters(const nn::Hookable& module) {
  return std::ranges::any_of(module.parameters(),
                             [](const auto& parameter) { return parameter.requires_grad(); });
}

void call_checkpointed(const nn::Hookable& module, const CheckpointOptions& options,
                       const std::shared_ptr<nn::Call>& call) {
  if (!at::GradMode::is_enabled()) return call->forward();
  TORCH_CHECK_VALUE(call->runs_again, module.name(),
                    ": expected a forward that can run again; take the argument that only moves "
                    "by reference, or leave out its checkpointing");
  auto record = std::make_shared<Record>();
  variable_list tensors;
  for (auto* input : call->inputs) {
    if (!input->defined()) continue;
    record->inputs.push_back(input);
    record->needs_gradient.push_back(input->requires_grad());
    tensors.push_back(*input);
  }
  if (std::ranges::none_of(tensors, [](const auto& tensor) { return tensor.requires_grad(); })) {
    if (!has_trained_parameters(module)) return call->forward();
    tensors.push_back(torch::empty({0}).requires_grad_());
  }
  record->call = call;
  record->options = options;
  record->tape = tape_for(options);
  record->autocast = AutocastState::of_this_thread().without_cache();
  const auto outputs = Checkpoint::apply(record, at::TensorList(tensors));
  for (const auto& output : outputs) {
    if (output.grad_fn()) record->node = output.grad_fn().get();
  }
  const auto stand_ins = results(*call);
  for (auto* place : call->outputs) {
    const auto same = [&](const Tensor& other) { return other.is_same(*place); };
    const auto found = std::ranges::find_if(stand_ins, same) - stand_ins.begin();
    if (place->defined()) *place = outputs[static_cast<size_t>(found)];
  }
  for (auto* input : record->inputs) *input = Tensor();  // autograd holds what is needed
}

}  // namespace

void checkpoint(nn::Hookable& module, const CheckpointOptions& options) {
  TORCH_CHECK_VALUE(options.every_k == 1, "every_k: expected 1 for one module, got ",
                    options.every_k, "; set it in checkpoint_blocks");
  TORCH_CHECK_VALUE(!options.drop_last_product || options.mode != CheckpointMode::none,
                    "drop_last_product: expected a mode that computes again, got none; set mode = "
                    "full");
  TORCH_CHECK_VALUE(!options.offload || options.mode != CheckpointMode::none,
                    "offload: expected a mode that keeps something, got none; set mode = full");
  if (options.mode == CheckpointMode::none) return;
  TORCH_CHECK_VALUE(!module.forward_computes_gradients(),
                    "checkpoint: expected a module whose "
                    "backward computes its gradients, got ",
                    module.name(), "; leave it out");
  module.add_hooks({.around = [&module, options](const std::shared_ptr<nn::Call>& call) {
    call_checkpointed(module, options, call);
  }});
}

void checkpoint_blocks(const std::vector<nn::Hookable*>& blocks, const CheckpointOptions& options) {
  TORCH_CHECK_VALUE(options.every_k >= 1, "every_k: expected at least 1, got ", options.every_k);
  auto each = options;
  each.every_k = 1;
  for (size_t i = 0; i < blocks.size(); i += static_cast<size_t>(options.every_k)) {
    checkpoint(*blocks[i], each);
  }
}

}  // namespace tessera::memory
