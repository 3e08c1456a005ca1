#include <ATen/MemoryOverlap.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/base/pattern.h"
#include "tessera/kernels/cpu/memory.h"
#include "tessera/parallel/data/engine.h"
#include "tessera/parallel/data/parameter_check.h"

namespace tessera::parallel {
namespace {

using Keys = std::unordered_set<const void*>;  // of parameters

/// Is there a view with a graph? It would stay what the parameter was before it got other memory.
bool has_view(const torch::Tensor& parameter) {
  return torch::autograd::impl::try_get_grad_accumulator(parameter) != nullptr &&
         parameter.storage().use_count() > 1;
}

/// The units by name, without what is `sharded` already; those that have nothing else go.
/// `has_engine`: is it sharded, wherever?
std::vector<CheckedUnit> named_units(const torch::nn::Module& model,
                                     std::vector<UnitModules>& units, const Keys& sharded,
                                     bool (*has_engine)(const torch::Tensor& parameter)) {
  std::unordered_map<const void*, std::string> names;
  std::vector<std::pair<std::string, const void*>> all;
  for (const auto& item : model.named_parameters()) {
    const auto* key = item.value().unsafeGetTensorImpl();
    if (names.emplace(key, item.key()).second) all.emplace_back(item.key(), key);
  }
  const auto parameters = parameters_of(units);
  auto taken = sharded;
  std::vector<CheckedUnit> result;
  std::vector<UnitModules> kept;
  for (size_t i = 0; i < units.size(); ++i) {
    const auto is_sharded = [&](const torch::Tensor& parameter) {
      return sharded.contains(parameter.unsafeGetTensorImpl());
    };
    if (!parameters[i].empty() && std::ranges::all_of(parameters[i], is_sharded)) continue;
    kept.push_back(units[i]);
    result.push_back({units[i].name, {}});
    for (const auto& parameter : parameters[i]) {
      const auto* key = parameter.unsafeGetTensorImpl();
      TORCH_CHECK_VALUE(!parameter.requires_grad() || parameter.is_floating_point(), names.at(key),
                        ": expected a real floating-point dtype, got ", parameter.scalar_type(),
                        "; keep its parts as two parameters");
      if (!taken.insert(key).second) continue;
      TORCH_CHECK_VALUE(!has_engine(parameter), names.at(key),
                        ": is sharded with another module, which has it too; shard a module that "
                        "contains both");
      TORCH_CHECK_VALUE(!has_view(parameter), names.at(key),
                        ": a view of it with a graph is kept (in a member, or by an earlier loss), "
                        "and would keep the values of now; make it in forward, or shard before");
      result.back().parameters.emplace_back(names.at(key), parameter);
    }
    TORCH_CHECK_VALUE(!result.back().parameters.empty(), "unit ", units[i].name,
                      ": expected a parameter that no earlier unit has");
  }
  for (const auto& [name, key] : all) {
    TORCH_CHECK_VALUE(taken.contains(key), name,
                      ": expected every parameter in a unit; add its module to one");
  }
  units = std::move(kept);
  return result;
}

/// Each gets memory of its own: a write to one would no longer be one to the other.
void check_no_overlap(const std::vector<CheckedUnit>& units) {
  std::unordered_map<const void*, std::vector<Unit::Named>> by_storage;
  for (const auto& unit : units) {
    for (const auto& named : unit.parameters) {
      if (!named.second.has_storage() || named.second.is_meta() || named.second.numel() == 0)
        continue;
      auto& beside = by_storage[named.second.storage().unsafeGetStorageImpl()];
      for (const auto& [name, other] : beside) {
        const auto overlap = at::get_overlap_status(named.second, other);
        TORCH_CHECK_VALUE(
            overlap != at::MemOverlapStatus::Full && overlap != at::MemOverlapStatus::Partial,
            named.first, ": expected memory of its own, got that of ", name,
            "; register one tensor twice to tie them, or make the view in forward");
      }
      beside.push_back(named);
    }
  }
}

/// Ranks have other rows in their batches.
void check_no_max_norm(const torch::nn::Module& model, const std::vector<CheckedUnit>& units,
                       const std::vector<UnitOptions>& options, const DataAxes& axes) {
  Keys bounded;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    const auto* table = dynamic_cast<const torch::nn::EmbeddingImpl*>(module.get());
    const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(module.get());
    if (table != nullptr && table->options.max_norm()) {
      bounded.insert(table->weight.unsafeGetTensorImpl());
    }
    if (bag != nullptr && bag->options.max_norm())
      bounded.insert(bag->weight.unsafeGetTensorImpl());
  }
  for (size_t i = 0; i < units.size(); ++i) {
    if (!is_sharded(options[i].placement) || axes.gather.size() == 1) continue;
    for (const auto& [name, parameter] : units[i].parameters) {
      TORCH_CHECK_VALUE(!bounded.contains(parameter.unsafeGetTensorImpl()), name,
                        ": expected no max_norm, with which an embedding's forward writes rows of "
                        "the weight that other ranks have; bound them between unshard() and "
                        "reshard()");
    }
  }
}

/// What rank 0 sends must be there. Collective.
void check_rank_0_has_values(const std::vector<CheckedUnit>& units, const mesh::Axis& axis) {
  std::string missing;
  for (const auto& unit : units) {
    for (const auto& [name, parameter] : unit.parameters) {
      if (missing.empty() && parameter.is_meta()) missing = name;
    }
  }
  const auto of_rank_0 = axis.all_gather_bytes(missing)[0];
  TORCH_CHECK_VALUE(
      of_rank_0.empty(), of_rank_0,
      ": is on the meta device on rank 0, whose values sync_module_states sends; load "
      "them there before");
}

/// Each unit's options, with the overrides.
std::vector<UnitOptions> options_by_unit(const std::vector<UnitModules>& units,
                                         const DataParallelOptions& options) {
  std::vector<UnitOptions> result(units.size(), options.unit);
  for (const auto& of_some : options.overrides) {
    bool found = false;
    for (size_t i = 0; i < units.size(); ++i) {
      if (!matches(of_some.pattern, units[i].name)) continue;
      result[i] = of_some.options;
      found = true;
    }
    if (!found) {
      std::vector<std::string> names;
      for (const auto& unit : units) names.push_back(unit.name);
      user_error("unit override: {} matches no unit{}; units are {}", of_some.pattern,
                 did_you_mean(of_some.pattern, names), fmt::join(names, ", "));
    }
  }
  return result;
}

/// Each unit's policy: none for the first units, as `fraction` says.
std::vector<OffloadPolicy> offload_by_unit(const std::vector<CheckedUnit>& units,
                                           const OffloadPolicy& policy, torch::Device device) {
  TORCH_CHECK_VALUE(!(policy.offload_params && policy.offload_optimizer),
                    "offload: expected offload_params or offload_optimizer, got both");
  TORCH_CHECK_VALUE(policy.on_drives != OnDrives::parameters || device.is_cpu(),
                    "offload: expected parameters on drives where the CPU computes, got ",
                    device.str(), "; set it to states");
  TORCH_CHECK_VALUE(policy.fraction >= 0 && policy.fraction <= 1,
                    "offload: expected a fraction from 0 to 1, got ", policy.fraction);
  std::vector<int64_t> elements;
  for (const auto& unit : units) {
    int64_t sum = 0;
    for (const auto& [name, parameter] : unit.parameters) sum += parameter.numel();
    elements.push_back(sum);
  }
  const auto offloaded = plan::offloaded_units(elements, policy.fraction);
  std::vector<OffloadPolicy> result(units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    if (offloaded[i]) result[i] = policy;
  }
  return result;
}

/// Null: everything is where it is computed with.
std::shared_ptr<HostCopies> host_copies(const std::vector<CheckedUnit>& units, const DataAxes& axes,
                                        const DataParallelOptions& options) {
  const auto& offload = options.offload;
  if (!offload.offload_params && !offload.offload_optimizer &&
      offload.on_drives == OnDrives::nothing) {
    return nullptr;
  }
  std::optional<torch::Device> device;
  for (const auto& unit : units) {
    for (const auto& [name, parameter] : unit.parameters) {
      const auto here = parameter.is_meta() ? axes.device : parameter.device();
      if (!device) device = here;
      TORCH_CHECK_VALUE(*device == here, name, ": expected all that is offloaded on ", *device,
                        ", got it on ", here);
    }
  }
  if (!device || (device->is_cpu() && !options.copy_queue)) return nullptr;
  return std::make_shared<HostCopies>(
      *device, options.copy_queue ? options.copy_queue : kernels::copy_queue);
}

/// Units in the order in which the model's modules are registered, which is most often that of the
/// first forward.
std::vector<size_t> in_order(const torch::nn::Module& model,
                             const std::vector<UnitModules>& units) {
  std::unordered_map<const torch::nn::Module*, size_t> places{{&model, 0}};
  for (const auto& module : model.modules(/*include_self=*/false)) {
    places.emplace(module.get(), places.size());
  }
  std::vector<std::pair<size_t, size_t>> order;  // place, unit
  for (size_t i = 0; i < units.size(); ++i) {
    order.emplace_back(places[units[i].modules.front()], i);
  }
  std::ranges::stable_sort(order, {}, [](const auto& entry) { return entry.first; });
  std::vector<size_t> result;
  for (const auto& [place, unit] : order) result.push_back(unit);
  return result;
}

/// Do the ranks that share parameters have the same ones? Those of experts, and all others.
void check_parameters(const std::vector<CheckedUnit>& units, const DataAxes& axes,
                      const DataParallelOptions& options) {
  std::vector<CheckedUnit> of_all, of_experts;
  for (const auto& unit : units) {
    CheckedUnit all{unit.name, {}}, experts{unit.name, {}};
    for (const auto& named : unit.parameters) {
      const bool is_expert = options.of_experts && options.of_experts(named.first);
      (is_expert ? experts : all).parameters.push_back(named);
    }
    if (!all.parameters.empty()) of_all.push_back(std::move(all));
    if (!experts.parameters.empty()) of_experts.push_back(std::move(experts));
  }
  check_same_model(of_all, /*values=*/!options.sync_module_states, axes.all);
  if (options.of_experts) check_same_model(of_experts, /*values=*/true, axes.experts.all);
}

void check_options(const std::vector<UnitModules>& units, const std::vector<UnitOptions>& options,
                   const DataAxes& axes, const DataParallelOptions& all) {
  TORCH_CHECK_VALUE(!all.of_experts || !all.sync_module_states,
                    "sync_module_states: rank 0 has not the experts of all ranks; set it to false");
  for (size_t i = 0; i < units.size(); ++i) {
    const auto* k = std::get_if<int>(&options[i].reshard_after_forward);
    if (k == nullptr) continue;
    TORCH_CHECK_VALUE(!all.of_experts, "unit ", units[i].name,
                      ": expected reshard_after_forward true or false beside experts that are "
                      "divided over ranks, got ",
                      *k);
    if (options[i].placement != Placement::full_shard) {
      user_error(
          "unit {}: reshard_after_forward {} takes effect with full_shard only; leave it out",
          units[i].name, *k);
    }
    if (*k != axes.inner.size() || *k < 1) {
      user_error(
          "unit {}: expected reshard_after_forward that divides the {} ranks of {}, the same for "
          "all units, got {}; set it to a divisor, true or false",
          units[i].name, axes.gather.size(), axes.gather.name(), *k);
    }
  }
}

}  // namespace

DataParallel parallelise(torch::nn::Module& model, std::vector<UnitModules> units,
                         const DataAxes& axes, const DataParallelOptions& options) {
  kernels::install_caching_allocator();  // before the buffers, and what their training makes
  const auto inside = DataParallel::Engine::inside(model);
  const auto checked = named_units(model, units, DataParallel::Engine::sharded_in(inside, model),
                                   DataParallel::Engine::shards);
  if (options.sync_module_states) check_rank_0_has_values(checked, axes.all);
  const auto unit_options = options_by_unit(units, options);
  check_options(units, unit_options, axes, options);
  check_no_overlap(checked);
  check_no_max_norm(model, checked, unit_options, axes);
  if (options.check_parameters) check_parameters(checked, axes, options);
  auto engine = std::make_shared<DataParallel::Engine>();
  engine->model = &model;
  engine->options = options;
  engine->axes = axes;
  for (const auto& [path, inner] : inside) engine->check_absorbs(path, *inner);
  engine->divide_factor = options.gradient_divide_factor.value_or(axes.all.size());
  const auto offload = offload_by_unit(checked, options.offload, axes.device);
  auto copies = host_copies(checked, axes, options);
  for (size_t i = 0; i < units.size(); ++i) {
    auto of_unit = options;
    of_unit.offload = offload[i];
    engine->units.emplace_back(units[i].name, checked[i].parameters, unit_options[i], of_unit, axes,
                               copies);
  }
  engine->modules = std::move(units);
  for (const auto& [path, inner] : inside) engine->absorb(path, *inner, copies);
  engine->calls.resize(engine->units.size());
  engine->unit_memory.resize(engine->units.size());
  engine->squares.resize(engine->units.size());
  std::vector<size_t> order(engine->units.size());
  std::iota(order.begin(), order.end(), size_t{0});
  engine->set_order(inside.empty() ? std::move(order) : in_order(model, engine->modules));
  engine->store_regions();
  engine->list_slices();
  engine->list_leaves();
  for (const auto& item : model.named_buffers()) {
    if (!item.value().defined()) continue;
    TORCH_CHECK_VALUE(
        options.buffers == BufferSync::per_rank ||
            at::has_internal_overlap(item.value()) != at::MemOverlap::Yes,
        item.key(),
        ": expected a buffer of its own memory, which ranks can be sent, got an expanded one; "
        "register a copy (clone())");
    engine->module_buffers.emplace_back(item.key(), item.value());
  }
  engine->attach();
  DataParallel handle;
  handle.engine_ = std::move(engine);
  return handle;
}

DataParallel fully_shard(torch::nn::Module& model, const mesh::DeviceMesh& mesh,
                         const DataParallelOptions& options, const UnitRule& rule) {
  const auto* k = std::get_if<int>(&options.unit.reshard_after_forward);
  return parallelise(model, make_units(model, rule), DataAxes::of(mesh, k == nullptr ? 0 : *k),
                     options);
}

DataParallel replicate(torch::nn::Module& model, const mesh::DeviceMesh& mesh,
                       DataParallelOptions options, const UnitRule& rule) {
  options.unit.placement = Placement::replicate;
  options.unit.reshard_after_forward = true;
  return parallelise(model, make_units(model, rule), DataAxes::of(mesh), options);
}

}  // namespace tessera::parallel
