#include "tessera/parallel/data/data_parallel.h"

#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tessera/parallel/data/parameter_check.h"

namespace tessera::parallel {
namespace {

/// The parameters of each unit by the model's full names; a tied one goes to the first unit that
/// has it.
std::vector<std::vector<FlatBuffer::Named>> parameters_by_unit(
    const torch::nn::Module& model, const std::vector<UnitModules>& units) {
  std::unordered_map<const void*, std::string> names;
  std::vector<FlatBuffer::Named> all;
  for (const auto& item : model.named_parameters()) {
    if (names.emplace(item.value().unsafeGetTensorImpl(), item.key()).second)
      all.emplace_back(item.key(), item.value());
  }
  std::unordered_set<const void*> taken;
  std::vector<std::vector<FlatBuffer::Named>> result(units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    for (const auto* module : units[i].modules) {
      for (const auto& parameter : module->parameters()) {
        const auto* key = parameter.unsafeGetTensorImpl();
        if (taken.insert(key).second) result[i].emplace_back(names.at(key), parameter);
      }
    }
  }
  for (const auto& [name, parameter] : all) {
    TORCH_CHECK_VALUE(taken.contains(parameter.unsafeGetTensorImpl()), name,
                      ": expected every parameter in a unit; add its module to one");
  }
  return result;
}

}  // namespace

struct Replicated::State {
  struct Unit {
    int64_t open_calls = 0;  // forwards whose backward has not ended
    bool done = false;       // in this step's last backward
    std::optional<comm::Work> work;
  };

  mesh::Axis axis;
  std::vector<FlatBuffer> buffers;
  std::vector<Unit> units;
  bool requires_sync = true;
  size_t launched = 0;  // units, counted from the last one

  explicit State(mesh::Axis axis) : axis(std::move(axis)) {}

  void before_forward(size_t unit) {
    if (torch::GradMode::is_enabled()) ++units[unit].open_calls;
  }

  void after_backward(size_t unit) {
    if (--units[unit].open_calls > 0 || !requires_sync) return;
    units[unit].done = true;
    while (launched < units.size() && units[units.size() - 1 - launched].done) launch_next();
  }

  // All ranks launch in this one order: collectives match by order, not by name.
  void launch_next() {
    const size_t unit = units.size() - 1 - launched++;
    units[unit].work = axis.all_reduce(buffers[unit].gradient(), comm::ReduceOp::sum);
  }

  void finish() {
    while (launched < units.size()) launch_next();
    for (size_t i = units.size(); i-- > 0;) {
      units[i].work->wait();
      units[i] = {};
    }
    launched = 0;
  }
};

void Replicated::set_requires_gradient_sync(bool required) { state_->requires_sync = required; }

void Replicated::finish_backward() { state_->finish(); }

void Replicated::zero_gradients() {
  for (const auto& buffer : state_->buffers) buffer.gradient().zero_();
}

const std::vector<FlatBuffer>& Replicated::buffers() const { return state_->buffers; }

std::vector<std::string> Replicated::parameters_without_gradient() const {
  std::vector<std::string> names;
  for (const auto& buffer : state_->buffers) {
    for (const auto& entry : buffer.entries()) {
      if (!entry.parameter.grad().any().item<bool>()) names.push_back(entry.name);
    }
  }
  return names;
}

Replicated replicate(torch::nn::Module& model, std::vector<UnitModules> units,
                     const mesh::Axis& axis, const ReplicateOptions& options) {
  auto state = std::make_shared<Replicated::State>(axis);
  const auto parameters = parameters_by_unit(model, units);
  for (size_t i = 0; i < units.size(); ++i) {
    TORCH_CHECK_VALUE(!parameters[i].empty(), "unit ", units[i].name,
                      ": expected a parameter that no earlier unit has");
    state->buffers.emplace_back(parameters[i], options.decays);
  }
  state->units.resize(state->buffers.size());
  if (options.check_parameters) check_same_parameters(state->buffers, axis);
  for (size_t i = 0; i < units.size(); ++i) {
    for (auto* module : units[i].modules) {
      module->add_hooks({.before_forward = [state, i] { state->before_forward(i); },
                         .after_backward = [state, i] { state->after_backward(i); }});
    }
  }
  Replicated handle;
  handle.state_ = std::move(state);
  return handle;
}

}  // namespace tessera::parallel
