#include "tessera/train/save_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/formats/open_source.h"
#include "tessera/checkpoint/run_on_all.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/lr_scheduler.h"
#include "tessera/train/torch_states.h"

namespace tessera {
namespace fs = std::filesystem;
using nlohmann::json;
using parallel::DataParallel;

namespace train {

std::vector<checkpoint::HeldExtent> held_parts(const SavedModel& saved, bool all_states,
                                               bool buffers) {
  const auto leaves = saved.model->parameters();
  struct Place {
    torch::optim::Optimizer* optimizer = nullptr;
    const torch::optim::OptimizerParamGroup* group = nullptr;
  };
  std::unordered_map<const void*, Place> place_of;
  for (auto* optimizer : saved.optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      for (const auto& leaf : group.params()) {
        place_of[leaf.unsafeGetTensorImpl()] = {optimizer, &group};
      }
    }
  }
  const auto states = [&](size_t part, const DataParallel::Part&) {
    const auto& leaf = leaves[part];
    const auto found = place_of.find(leaf.unsafeGetTensorImpl());
    if (found == place_of.end() || !knows_states(*found->second.optimizer)) {
      return std::vector<PartState>();
    }
    const auto [optimizer, group] = found->second;
    std::vector<PartState> kept;
    for (auto& [name, values] :
         torch_states(*optimizer, *group, leaf, all_states && leaf.requires_grad())) {
      kept.push_back({.name = name, .values = values});
    }
    return kept;
  };
  auto held = held_parts(*saved.model, states, saved.named);
  if (!buffers) return held;
  for (const auto& [name, buffer] : saved.model->named_buffers()) {
    TORCH_CHECK_VALUE(buffer.is_contiguous(), name,
                      ": expected a contiguous buffer, as checkpoints hold them; register "
                      "contiguous() or clone() of it");
    held.push_back(checkpoint::held_extent(saved.named(name), buffer.sizes().vec(), 0,
                                           buffer.detach().view({-1})));
  }
  return held;
}

json counts_of(const torch::optim::Optimizer& optimizer, const std::vector<SavedModel>& models,
               const mesh::Axis& axis) {
  // A parameter that took no part in some losses had fewer updates than others.
  json own = json::object();
  for (const auto& saved : models) {
    for (const auto& item : saved.model->named_parameters()) {
      own[saved.named(item.key())] = torch_step(optimizer, item.value());
    }
  }
  json steps = json::object(), rates = json::array();
  for (const auto& text : axis.all_gather_bytes(own.dump())) steps.update(json::parse(text));
  int64_t most = 0;
  for (const auto& [name, step] : steps.items()) most = std::max(most, step.get<int64_t>());
  for (auto item = steps.begin(); item != steps.end();) {
    item = *item == most ? steps.erase(item) : std::next(item);
  }
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return {{"step", most}, {"fewer_steps", steps}, {"learning_rates", rates}};
}

void set_counts(torch::optim::Optimizer& optimizer, const std::vector<SavedModel>& models,
                const json& counts) {
  auto& groups = optimizer.param_groups();
  const auto& rates = counts.at("learning_rates");
  if (rates.size() != groups.size()) {
    user_error("load_state: expected an optimizer of {} parameter groups as the one saved, got {}",
               rates.size(), groups.size());
  }
  for (size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates[i]);
  const auto fewer = counts.value("fewer_steps", json::object());
  for (const auto& saved : models) {
    for (const auto& item : saved.model->named_parameters()) {
      const int64_t step = fewer.value(saved.named(item.key()), counts.at("step").get<int64_t>());
      set_torch_step(optimizer, item.value(), step);
    }
  }
}

void load_all(const checkpoint::Checkpoint& found, const std::vector<checkpoint::HeldExtent>& held,
              const std::vector<const torch::optim::Optimizer*>& optimizers) {
  for (const auto& part : held) {
    const auto& [name, info] = std::tie(part.extent.name, part.extent.info);
    if (std::ranges::count(info.shape, 0) > 0) continue;  // nobody holds nothing
    if (!found.contains(name)) {
      user_error("{}: has no tensor {}; expected a checkpoint of this model and optimizer",
                 found.path().string(), name);
    }
    const auto& there = found.info(name).shape;
    if (there == info.shape) continue;
    user_error("{}: another model's: {}: expected shape [{}], got [{}]", found.path().string(),
               name, fmt::join(info.shape, ", "), fmt::join(there, ", "));
  }
  std::set<std::string> kept;
  for (const auto* optimizer : optimizers) kept.merge(torch_state_names(*optimizer));
  for (const auto& [name, tensor] : found.index().tensors) {
    if (optimizers.empty() || !checkpoint::is_optimizer_state(name)) continue;
    const std::string state(checkpoint::optimizer_state(name));
    if (kept.contains(state)) continue;
    user_error("{}: has {} of an optimizer; expected one that keeps it, as the one saved did",
               found.path().string(), state);
  }
  checkpoint::load_extents(found, held);
}

fs::path newest_checkpoint(const fs::path& path) {
  if (checkpoint::is_checkpoint(path)) return path;
  auto folders = checkpoint::step_folders(path);
  while (!folders.empty() && !fs::exists(folders.back().path / checkpoint::kMarkerFile)) {
    folders.pop_back();
  }
  if (folders.empty()) {
    user_error("load_state: expected a checkpoint or a folder of them, got '{}'", path.string());
  }
  return folders.back().path;
}

}  // namespace train

namespace {

/// The ranks that hold the model together, on a channel that nobody else uses.
const mesh::Axis& saving_axis(const mesh::DeviceMesh& mesh) {
  return mesh.axis({"dp_replicate", "dp_shard"}, {.channel = mesh::kSaveChannel});
}

/// Every parameter of the model that is here must be one of the optimizer's.
void check_optimizer(const DataParallel& model, const torch::optim::Optimizer& optimizer) {
  const auto leaves = model.named_parameters();
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto same = [&](const auto& item) { return item.value().is_same(parameter); };
      TORCH_CHECK_VALUE(std::ranges::any_of(leaves, same),
                        "expected an optimizer over the sharded model's parameters()");
    }
  }
}

void check_scheduler(const checkpoint::Checkpoint& found, bool has_scheduler) {
  if (found.index().state.contains("scheduler") == has_scheduler) return;
  user_error("{}: {}", found.path().string(),
             has_scheduler ? "was saved without a scheduler; give save_state() the one of the run"
                           : "was saved with a scheduler; give load_state() the one of the run");
}

void check_sharded(const char* function, const DataParallel& model) {
  for (const auto& unit : model.units()) {
    TORCH_CHECK_VALUE(!unit.frees_whole() || !unit.has_whole(), function,
                      ": expected a model whose parameters are sharded; call reshard() or "
                      "finish_step() before");
  }
}

/// One place for all ranks, where no other model's checkpoint stands. Collective.
void check_place(const fs::path& directory, int64_t step,
                 const std::vector<checkpoint::HeldExtent>& held, const mesh::Axis& axis) {
  auto own = fmt::format("step {} of '{}'", step, directory.string());
  const auto places = checkpoint::run_on_all(axis, [&] {
    for (const auto& folder : checkpoint::step_folders(directory)) {
      if (folder.step != step || !checkpoint::is_checkpoint(folder.path)) continue;
      const checkpoint::Checkpoint there(folder.path);
      for (const auto& part : held) {
        const auto found = there.index().tensors.find(part.extent.name);
        if (found != there.index().tensors.end() &&
            found->second.info.shape == part.extent.info.shape) {
          continue;
        }
        user_error(
            "save_state: {} is of another model or optimizer: it has no {} of this shape; expected "
            "a folder for each",
            folder.path.string(), part.extent.name);
      }
    }
    return own;
  });
  for (const auto& other : places) {
    TORCH_CHECK_VALUE(other == own, "save_state: expected one step and folder on all ranks, got ",
                      own, " and ", other);
  }
}

}  // namespace

void save_state(const fs::path& directory, const DataParallel& model,
                torch::optim::Optimizer& optimizer, const mesh::DeviceMesh& mesh, int64_t step,
                const lr_scheduler::LRScheduler* scheduler) {
  check_optimizer(model, optimizer);
  TORCH_CHECK_VALUE(step >= 0, "save_state: expected a step of at least 0, got ", step);
  check_sharded("save_state", model);
  const auto& axis = saving_axis(mesh);
  const train::SavedModel saved{.model = &model, .optimizers = {&optimizer}};
  const auto held = train::held_parts(saved, /*all_states=*/true, /*buffers=*/axis.rank() == 0);
  check_place(directory, step, held, axis);
  checkpoint::Saver saver(axis, held,
                          {.directory = directory,
                           .async = false,
                           .layout = {{"num_ranks", axis.size()}},
                           .model = json::object(),
                           .config = {}});
  json state{{"optimizer", train::counts_of(optimizer, {saved}, axis)}};
  if (scheduler != nullptr) state["scheduler"] = scheduler->state_dict();
  saver.save({.step = step, .state = std::move(state)});
  saver.finish();
  for (const auto& report : saver.take_reports()) {
    if (!report.error.empty()) throw SystemError(report.error);
  }
}

int64_t load_state(const fs::path& directory, DataParallel& model,
                   torch::optim::Optimizer& optimizer, const mesh::DeviceMesh& mesh,
                   lr_scheduler::LRScheduler* scheduler) {
  check_optimizer(model, optimizer);
  check_sharded("load_state", model);
  const train::SavedModel saved{.model = &model, .optimizers = {&optimizer}};
  int64_t step = 0;
  checkpoint::run_on_all(saving_axis(mesh), [&] {
    const checkpoint::Checkpoint found(train::newest_checkpoint(directory));
    checkpoint::check_name(found.path(), found.index().step);
    check_scheduler(found, scheduler != nullptr);
    train::load_all(found, train::held_parts(saved, /*all_states=*/true, /*buffers=*/true),
                    {&optimizer});
    model.values_changed();
    const auto& state = found.index().state;
    try {
      if (scheduler != nullptr) scheduler->load_state_dict(state.at("scheduler"));
      train::set_counts(optimizer, {saved}, state.at("optimizer"));  // rates are the optimizer's
    } catch (const json::exception& error) {
      user_error("{}: expected a checkpoint of save_state: {}", found.path().string(),
                 error.what());
    }
    step = found.index().step;
    return "";
  });
  return step;
}

}  // namespace tessera
