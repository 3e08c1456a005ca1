// How an engine comes to its model: what it lists of the units, the hooks that it puts there, and
// what it takes over from modules that were sharded before.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "tessera/parallel/data/engine.h"

namespace tessera::parallel {
namespace {

/// The policy's casts, as hooks of a module of the unit.
nn::Hooks policy_hooks(const MixedPrecisionPolicy& policy, const nn::Hookable& module) {
  nn::Hooks hooks;
  if (policy.param_dtype && policy.cast_forward_inputs && module.inputs_are_cast()) {
    hooks.replace_input = [dtype = *policy.param_dtype,
                           all = policy.cast_constant_inputs](torch::Tensor& input) {
      if (input.is_floating_point() && (all || input.requires_grad())) input = input.to(dtype);
    };
  }
  if (policy.output_dtype) {
    hooks.replace_output = [dtype = *policy.output_dtype](torch::Tensor& output) {
      if (output.is_floating_point()) output = output.to(dtype);
    };
  }
  return hooks;
}

}  // namespace

void DataParallel::Engine::list_slices() {
  // Ranks that share parameters otherwise may have other parts of the model beside them.
  std::map<std::string, int64_t> begin_of_shared;
  slices_of_unit.clear();
  for (const auto& unit : units) {
    const size_t first_slice = slices.size();
    for (const auto& buffer : unit.buffers()) {
      const auto& holders = buffer.options().replication.ranks;
      auto& begin = begin_of_shared
                        .try_emplace(holders.size() > 1 ? holders.name() : "",
                                     int64_t{holders.size() - 1} << 48)
                        .first->second;
      const int64_t first = buffer.slice_begin(), last = first + buffer.slice_size();
      for (const auto& group : buffer.groups()) {
        const int64_t from = std::max(group.begin, first), to = std::min(group.end, last);
        if (from >= to || !buffer.trained()) continue;
        const auto part = [&](const torch::Tensor& of) {
          return of.narrow(0, from - first, to - from);
        };
        slices.push_back({.parameter = part(buffer.slice()),
                          .gradient = part(buffer.gradient_of_slice()),
                          .gradient_factor = buffer.gradient_factor(),
                          .decayed = group.decays,
                          .apart = buffer.options().apart,
                          .on_drives = buffer.plan().states == plan::Tier::drive,
                          .treatment = group.treatment,
                          .begin = begin + from});
        if (buffer.slice().is_meta()) list_stored(buffer, from - first, slices.back());
        if (buffer.plan().gradient_on_drives) {
          slices.back().bring_gradient = [this, region = buffer.gradient_region()] {
            bring_gradient(region);
          };
        }
      }
      begin += buffer.content_size();
      memory.parameters += buffer.slice_memory();
    }
    slices_of_unit.emplace_back(first_slice, slices.size());
  }
}

/// Says of a slice at `begin` of its buffer's how what is on drives of it comes.
void DataParallel::Engine::list_stored(const FlatBuffer& buffer, int64_t begin, Slice& slice) {
  const int64_t count = slice.parameter.numel();
  const bool is_copy = buffer.plan().master_on_drives;
  if (!buffer.region()) {
    slice.copy = buffer.gather_source().narrow(0, begin, count);
    return;
  }
  const auto dtype = buffer.whole.tensor().scalar_type();
  if (is_copy) slice.copy = torch::empty({count}, torch::dtype(dtype).device(torch::kMeta));
  slice.bring = [&buffer, begin, count, is_copy] {
    return buffer.change_stored(/*all=*/is_copy).narrow(0, begin, count);
  };
}

void DataParallel::Engine::list_leaves() {
  size_t slice = 0;  // slices and pieces come in one order
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t b = 0; b < units[u].buffers().size(); ++b) {
      const auto& buffer = units[u].buffers()[b];
      for (const auto& extent : buffer.owned()) {
        auto& leaf = leaves.emplace_back();
        leaf.name = extent.name;
        leaf.tensor = extent.values.detach().requires_grad_(buffer.trained());
        leaf.unit = u, leaf.buffer = b, leaf.entry = extent.entry;
        leaf.offset = extent.values.storage_offset() - buffer.slice().storage_offset();
        if (!buffer.trained()) continue;
        const auto begin = extent.values.storage_offset();
        const auto holds = [&](const torch::Tensor& other) {
          return other.is_alias_of(extent.values) && begin >= other.storage_offset() &&
                 begin < other.storage_offset() + other.numel();
        };
        while (!holds(slices[slice].parameter)) ++slice;
        leaf.slice = slice;
      }
    }
  }
}

DataParallel::Engine::Inside DataParallel::Engine::inside(torch::nn::Module& model) {
  Inside engines;
  std::unordered_map<const torch::nn::Module*, std::string> paths;
  const auto look = [&](const std::string& path, torch::nn::Module& module) {
    paths.emplace(&module, path);
    const auto* hookable = dynamic_cast<nn::Hookable*>(&module);
    if (hookable == nullptr) return;
    for (const auto& hooks : hookable->hooks()) {
      const auto* engine = std::any_cast<std::shared_ptr<Engine>>(&hooks.owner);
      if (engine == nullptr) continue;
      const auto same = [&](const auto& other) { return other.second == *engine; };
      if (std::ranges::any_of(engines, same)) continue;
      const auto root = paths.find((*engine)->model);
      TORCH_CHECK_VALUE(root != paths.end() && (*engine)->model != &model,
                        path.empty() ? "the model" : path,
                        ": expected a module that is not sharded yet; shard each once, inner ones "
                        "before those that contain them");
      engines.emplace_back(root->second, *engine);
    }
  };
  look("", model);
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    look(item.key(), *item.value());
  }
  return engines;
}

std::unordered_set<const void*> DataParallel::Engine::sharded_in(const Inside& inside,
                                                                 const torch::nn::Module& model) {
  std::unordered_map<const void*, size_t> owners;  // of parameters: indices of `inside`
  std::vector<std::unordered_set<const torch::nn::Module*>> below(inside.size());
  std::unordered_set<const void*> keys;
  for (size_t i = 0; i < inside.size(); ++i) {
    for (const auto& module : inside[i].second->model->modules()) below[i].insert(module.get());
    for (const auto& unit : inside[i].second->units) {
      for (const auto& buffer : unit.buffers()) {
        for (const auto& entry : buffer.entries()) {
          const auto* key = entry.parameter.unsafeGetTensorImpl();
          owners.emplace(key, i);
          keys.insert(key);
        }
      }
    }
  }
  const auto check = [&](const std::string& name, const torch::nn::Module& module) {
    for (const auto& parameter : direct_parameters(module)) {
      const auto owner = owners.find(parameter.unsafeGetTensorImpl());
      if (owner == owners.end() || below[owner->second].contains(&module)) continue;
      TORCH_CHECK_VALUE(false, name, ": expected parameters of its own, got one of ",
                        inside[owner->second].first,
                        ", which was sharded before; shard a module that contains both");
    }
  };
  if (inside.empty()) return keys;
  check("the model", model);
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    check(item.key(), *item.value());
  }
  return keys;
}

void DataParallel::Engine::check_absorbs(const std::string& path, const Engine& inner) const {
  TORCH_CHECK_VALUE(inner.axes.all.name() == axes.all.name() &&
                        inner.axes.gather.name() == axes.gather.name() &&
                        inner.axes.inner.size() == axes.inner.size(),
                    path,
                    ": expected it to be sharded over the ranks of the whole model; pass the "
                    "same mesh and reshard_after_forward");
  TORCH_CHECK_VALUE(!inner.leaves_taken && !inner.slices_taken, path,
                    ": expected optimizers of the whole sharded model; make them after the last "
                    "fully_shard()");
  TORCH_CHECK_VALUE(!inner.regions && !inner.gradient_regions, path,
                    ": expected one fully_shard() of the whole model where slices or gradients are "
                    "on drives");
}

void DataParallel::Engine::absorb(const std::string& path, Engine& inner,
                                  std::shared_ptr<HostCopies>& copies) {
  for (size_t i = 0; i < inner.units.size(); ++i) {
    for (auto* module : inner.modules[i].modules) {
      module->remove_hooks([&](const nn::Hooks& hooks) {
        const auto* owner = std::any_cast<std::shared_ptr<Engine>>(&hooks.owner);
        return owner != nullptr && owner->get() == &inner;
      });
    }
    units.push_back(std::move(inner.units[i]));
    units.back().move_below(path);
    units.back().share_copies(copies);
    modules.push_back(std::move(inner.modules[i]));
  }
  inner.absorbed = true;
}

// The model keeps the engine alive through its hooks.
void DataParallel::Engine::attach() {
  const auto engine = shared_from_this();
  for (size_t i = 0; i < modules.size(); ++i) {
    for (auto* module : modules[i].modules) {
      const auto casts = policy_hooks(units[i].options().mixed_precision, *module);
      module->add_hooks({.replace_output =
                             [engine, i](torch::Tensor& output) {
                               engine->watch_output(i, output);
                               engine->keep_beyond(i, output);
                             },
                         .owner = engine});
      module->add_hooks(
          {.before_forward = [engine, i, module] { engine->before_forward(i, *module); },
           .after_forward = [engine, i,
                             module](bool follows) { engine->after_forward(i, *module, follows); },
           .before_backward = [engine, i] { engine->before_backward(i); },
           .after_backward = [engine, i] { engine->after_backward(i); },
           .replace_input = casts.replace_input,
           .replace_output = casts.replace_output,
           .owner = engine});
    }
    watch_gradients(i);
  }
}

// Not hooks of the parameter: those are the user's, and operators hand gradients to them
// (autograd/gradient_sink.h).
struct DataParallel::Engine::Arrival : torch::autograd::FunctionPreHook {
  Arrival(std::weak_ptr<Engine> engine, size_t unit, size_t buffer, size_t entry)
      : engine(std::move(engine)), unit(unit), buffer(buffer), entry(entry) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    const auto here = engine.lock();
    if (here && !here->absorbed && gradients[0].defined()) {
      here->gradient_arrives(unit, here->units[unit].buffers()[buffer].entries()[entry].parameter);
    }
    return gradients;
  }
  std::weak_ptr<Engine> engine;
  size_t unit, buffer, entry;
};

bool DataParallel::Engine::shards(const torch::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  return std::ranges::any_of(accumulator->pre_hooks(), [](const auto& hook) {
    const auto* arrival = dynamic_cast<const Arrival*>(hook.get());
    return arrival != nullptr && !arrival->engine.expired();
  });
}

/// Watches parameters that need a gradient now and did not before: all such at first, later those
/// that are unfrozen.
void DataParallel::Engine::watch_gradients(size_t unit) {
  for (size_t b = 0; b < units[unit].buffers().size(); ++b) {
    auto& buffer = units[unit].buffers()[b];
    const auto entries = buffer.newly_trained();
    if (entries.empty()) continue;
    if (!buffer.trained()) {
      TORCH_CHECK_VALUE(!slices_taken, buffer.entries()[entries.front()].name,
                        ": expected an optimizer over parameters(), as slices() do not change; "
                        "unfreeze it before sharding");
      buffer.start_training();
    }
    for (const size_t i : entries) {
      watched.push_back(torch::autograd::impl::grad_accumulator(buffer.entries()[i].parameter));
      buffer.note_watched(i, watched.back().get());
      watched.back()->add_pre_hook(std::make_unique<Arrival>(weak_from_this(), unit, b, i));
    }
  }
}

/// A result that is a view of a parameter outlives the parameter's memory.
void DataParallel::Engine::keep_beyond(size_t unit, torch::Tensor& output) const {
  if (!units[unit].frees_whole()) return;
  for (const auto& buffer : units[unit].buffers()) {
    if (buffer.holds(output)) output = output.clone();
  }
}

void DataParallel::Engine::watch_output(size_t unit, const torch::Tensor& output) {
  if (!watching || nonfinite_output || !output.is_floating_point()) return;
  if (!output.isfinite().all().item<bool>()) nonfinite_output = unit;
}

}  // namespace tessera::parallel
