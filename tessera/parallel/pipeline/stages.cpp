#include "tessera/parallel/pipeline/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/nn/hooked.h"
#include "tessera/nn/module_path.h"

namespace tessera::parallel {
namespace {

using torch::nn::Module;

/// A tied parameter has one key.
const void* key_of(const torch::Tensor& parameter) { return parameter.unsafeGetTensorImpl(); }

std::shared_ptr<Module> module_at(const Module& model, const std::string& path) {
  auto module = nn::find_module(model, path);
  TORCH_CHECK_VALUE(module != nullptr, "stages: the model has no module '", path, "'");
  return module;
}

/// The stages that use each parameter: the one whose module has it, and those that borrow it.
using Users = std::map<const void*, std::set<int>>;

Users users_of(const Module& model, const StageModules& stages) {
  Users users;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const auto use = [&](const torch::Tensor& parameter) {
      users[key_of(parameter)].insert(static_cast<int>(stage));
    };
    for (const auto& path : stages[stage]) {
      for (const auto& module : module_at(model, path)->modules()) {
        for (const auto& parameter : module->parameters(/*recurse=*/false)) use(parameter);
        if (const auto* hookable = dynamic_cast<const nn::Hookable*>(module.get())) {
          for (const auto& parameter : hookable->borrowed_parameters()) use(parameter);
        }
      }
    }
  }
  return users;
}

/// Puts a plain module in the place of one that goes, with those of its parameters that stay.
void leave_parameters(Module& model, const std::string& path, const std::set<const void*>& stay) {
  const auto module = module_at(model, path);
  nn::remove_module(model, path);
  auto rest = std::make_shared<Module>();
  for (const auto& item : module->named_parameters(/*recurse=*/false)) {
    const auto& parameter = item.value();
    if (!stay.contains(key_of(parameter))) continue;
    rest->register_parameter(item.key(), parameter, parameter.requires_grad());
  }
  if (rest->parameters().empty()) return;
  const auto dot = path.rfind('.');
  Module& parent = dot == std::string::npos ? model : *module_at(model, path.substr(0, dot));
  parent.register_module(path.substr(dot + 1), rest);
}

/// What is trained on one rank and frozen on another would end with two values.
void check_frozen_alike(const std::string& name, bool trained, const std::set<int>& stages,
                        const mesh::Axis& holders) {
  const auto all = holders.all_gather_bytes(trained ? "trained" : "frozen");
  if (std::ranges::count(all, all[0]) == holders.size()) return;
  std::string text;
  size_t i = 0;
  for (const int stage : stages) {
    text += fmt::format("{}{} in stage {}", i == 0 ? "" : ", ", all[std::min(i, all.size() - 1)],
                        stage);
    ++i;
  }
  user_error("{}: tied over stages, but {}; freeze it in all of them or in none", name, text);
}

}  // namespace

std::map<std::string, Replication> keep_stages(Module& model, const StageModules& stages,
                                               const std::vector<int>& rank_of_stage,
                                               const mesh::DeviceMesh& mesh) {
  const int rank = mesh.axis("pp").rank();
  const auto users = users_of(model, stages);
  std::map<std::string, Replication> shared;
  std::set<const void*> here;
  for (const auto& item : model.named_parameters()) {
    const auto found = users.find(key_of(item.value()));
    TORCH_CHECK_VALUE(found != users.end(), "stages: no stage calls the module of ", item.key());
    std::set<int> ranks;
    for (const int stage : found->second) ranks.insert(rank_of_stage[static_cast<size_t>(stage)]);
    if (!ranks.contains(rank)) continue;
    here.insert(key_of(item.value()));
    if (ranks.size() == 1) continue;
    const auto& holders = mesh.axis("pp", {.only = {ranks.begin(), ranks.end()}});
    check_frozen_alike(item.key(), item.value().requires_grad(), found->second, holders);
    shared.emplace(item.key(), Replication{.ranks = holders, .partial_gradients = true});
  }
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (rank_of_stage[stage] == rank) continue;
    for (const auto& path : stages[stage]) leave_parameters(model, path, here);
  }
  return shared;
}

}  // namespace tessera::parallel
