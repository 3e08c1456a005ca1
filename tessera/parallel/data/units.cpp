#include "tessera/parallel/data/units.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/base/pattern.h"

namespace tessera::parallel {
namespace {

using torch::nn::Module;

struct Named {
  std::string path;
  std::shared_ptr<Module> module;
  nn::Hookable* hookable;
};

/// Every module in the order of registration, each before what it contains.
std::vector<Named> modules_of(Module& model) {
  std::vector<Named> result;
  std::unordered_set<const Module*> seen;  // one may be registered under several names
  result.push_back({"", nullptr, dynamic_cast<nn::Hookable*>(&model)});
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (!seen.insert(item.value().get()).second) continue;
    result.push_back({item.key(), item.value(), dynamic_cast<nn::Hookable*>(item.value().get())});
  }
  return result;
}

bool inside(const std::string& path, const std::string& outer) {
  return outer.empty() || path == outer || (path.starts_with(outer) && path[outer.size()] == '.');
}

/// "tessera::models::LlamaBlockImpl" -> "LlamaBlock"
std::string class_name(const Module& module) {
  std::string name = module.name();
  const auto scope = name.rfind("::");
  if (scope != std::string::npos) name.erase(0, scope + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

/// Its own, or borrowed ones, or those of a module inside.
bool has_parameters(nn::Hookable& module) {
  return !parameters_of({{.name = "", .modules = {&module}}}, 0).empty();
}

/// Paths of the outermost hookable modules that have or borrow parameters and of which `pick` says
/// yes. Modules without parameters have nothing to gather or reduce.
template <typename Pick>
std::vector<std::string> outermost(const std::vector<Named>& modules, const Pick& pick) {
  std::vector<std::string> paths;
  for (const auto& named : modules) {
    const auto covers = [&](const std::string& path) { return inside(named.path, path); };
    if (named.module && named.hookable && std::ranges::none_of(paths, covers) && pick(named) &&
        has_parameters(*named.hookable)) {
      paths.push_back(named.path);
    }
  }
  return paths;
}

std::vector<std::string> by_class(const std::vector<Named>& modules, const UnitRule& rule) {
  std::set<std::string> present;
  for (const auto& named : modules) {
    if (named.module && named.hookable) present.insert(class_name(*named.module));
  }
  for (const auto& name : rule.classes) {
    if (!present.contains(name) && !rule.is_stage) {
      user_error("units by class: no module of class {} in the model{}", name,
                 did_you_mean(name, std::vector(present.begin(), present.end())));
    }
  }
  return outermost(modules, [&](const Named& named) {
    return std::ranges::count(rule.classes, class_name(*named.module)) > 0;
  });
}

std::vector<std::string> by_name(const std::vector<Named>& modules, const UnitRule& rule) {
  std::vector<std::string> paths;
  for (const auto& named : modules) paths.push_back(named.path);
  for (const auto& pattern : rule.patterns) {
    const auto fits = [&](const Named& named) {
      return named.hookable && matches(pattern, named.path) && has_parameters(*named.hookable);
    };
    if (std::ranges::none_of(modules, fits) && !rule.is_stage) {
      user_error("units by name: {} matches no hookable module with parameters{}", pattern,
                 did_you_mean(pattern, paths));
    }
  }
  return outermost(modules, [&](const Named& named) {
    return std::ranges::any_of(rule.patterns,
                               [&](const auto& pattern) { return matches(pattern, named.path); });
  });
}

std::vector<std::string> by_size(const std::vector<Named>& modules, const UnitRule& rule) {
  std::vector<std::string> paths;
  std::unordered_set<const void*> taken;
  // Innermost first: in reverse order of registration every module comes after what it contains.
  for (const auto& named : modules | std::views::reverse) {
    if (!named.module || !named.hookable) continue;
    int64_t count = 0;
    const auto parameters = named.module->parameters();
    for (const auto& parameter : parameters) {
      if (taken.contains(parameter.unsafeGetTensorImpl())) continue;
      count += rule.num_elements ? rule.num_elements(parameter) : parameter.numel();
    }
    if (count < rule.min_num_params) continue;
    for (const auto& parameter : parameters) taken.insert(parameter.unsafeGetTensorImpl());
    paths.push_back(named.path);
  }
  return paths;
}

/// The innermost hookable module that `path` lies in.
const Named& owner_of(const std::vector<Named>& modules, const std::string& path) {
  const Named* owner = nullptr;
  for (const auto& named : modules) {
    if (named.hookable && inside(path, named.path)) owner = &named;
  }
  if (owner == nullptr) {
    user_error("{}: expected its parameters in a tessera::nn::Hookable module; derive it from one",
               path.empty() ? "the model" : path);
  }
  return *owner;
}

/// Parameters that hookable modules use although others have them.
std::unordered_set<const void*> borrowed_parameters(const std::vector<Named>& modules) {
  std::unordered_set<const void*> keys;
  for (const auto& named : modules) {
    if (named.hookable == nullptr) continue;
    for (const auto& parameter : named.hookable->borrowed_parameters()) {
      keys.insert(parameter.unsafeGetTensorImpl());
    }
  }
  return keys;
}

/// Is there a parameter in it for which a module must be found? What a plain module has and another
/// borrows is the borrower's.
bool uses_parameters(const Named& named, const std::unordered_set<const void*>& borrowed) {
  if (named.hookable != nullptr) {
    return !named.hookable->parameters(/*recurse=*/false).empty() ||
           !named.hookable->borrowed_parameters().empty();
  }
  const auto lent = [&](const auto& parameter) {
    return borrowed.contains(parameter.unsafeGetTensorImpl());
  };
  return named.module && !std::ranges::all_of(named.module->parameters(/*recurse=*/false), lent);
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

/// Units in the order of registration: picked modules, and what lies between them.
std::vector<UnitModules> draft_units(const std::vector<Named>& modules,
                                     const std::vector<std::string>& picked) {
  std::vector<UnitModules> units;
  std::set<const nn::Hookable*> seen;
  const auto borrowed = borrowed_parameters(modules);
  bool open = false;  // may a leftover module join the last unit?
  for (const auto& named : modules) {
    if (std::ranges::count(picked, named.path) > 0) {
      units.push_back({named.path, {named.hookable}});
      open = false;
      continue;
    }
    const auto covers = [&](const std::string& path) { return inside(named.path, path); };
    if (std::ranges::any_of(picked, covers) || !uses_parameters(named, borrowed)) continue;
    const auto& owner = owner_of(modules, named.path);
    if (!seen.insert(owner.hookable).second) continue;
    if (!open) units.push_back({});
    auto& name = units.back().name;
    if (open) name += "+";
    name += owner.path.empty() ? "root" : last_part(owner.path);
    units.back().modules.push_back(owner.hookable);
    open = true;
  }
  return units;
}

/// Units that share a parameter become one, in the place of the first.
void merge_tied(std::vector<UnitModules>& units) {
  std::vector<size_t> place(units.size());  // of the unit that each became part of
  std::unordered_map<const void*, size_t> first_user;
  for (size_t i = 0; i < units.size(); ++i) {
    std::set<size_t> sharing{i};
    for (const auto& parameter : parameters_of(units, i)) {
      const auto [user, is_first] = first_user.emplace(parameter.unsafeGetTensorImpl(), i);
      if (!is_first) sharing.insert(place[user->second]);
    }
    const size_t into = *sharing.begin();
    for (auto& other : place | std::views::take(i)) {
      if (sharing.contains(other)) other = into;
    }
    place[i] = into;
  }
  for (size_t i = 0; i < units.size(); ++i) {
    if (place[i] == i) continue;
    auto& into = units[place[i]];
    into.name += fmt::format("+{}", last_part(units[i].name));
    into.modules.insert(into.modules.end(), units[i].modules.begin(), units[i].modules.end());
    units[i].modules.clear();
  }
  std::erase_if(units, [](const auto& unit) { return unit.modules.empty(); });
}

void collect(const Module& module, const std::set<const Module*>& elsewhere,
             std::unordered_set<const void*>& seen, std::vector<torch::Tensor>& parameters) {
  const auto add = [&](const torch::Tensor& parameter) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  };
  for (const auto& parameter : module.parameters(/*recurse=*/false)) add(parameter);
  if (const auto* hookable = dynamic_cast<const nn::Hookable*>(&module)) {
    for (const auto& parameter : hookable->borrowed_parameters()) add(parameter);
  }
  for (const auto& child : module.children()) {
    if (!elsewhere.contains(child.get())) collect(*child, elsewhere, seen, parameters);
  }
}

}  // namespace

std::vector<torch::Tensor> parameters_of(const std::vector<UnitModules>& units, size_t index) {
  std::set<const Module*> elsewhere;
  for (size_t i = 0; i < units.size(); ++i) {
    for (const auto* module : units[i].modules) elsewhere.insert(module);
  }
  std::vector<torch::Tensor> parameters;
  std::unordered_set<const void*> seen;
  for (const auto* module : units[index].modules) collect(*module, elsewhere, seen, parameters);
  return parameters;
}

std::vector<UnitModules> make_units(Module& model, const UnitRule& rule) {
  const auto modules = modules_of(model);
  std::vector<std::string> picked;
  switch (rule.kind) {
    case UnitRuleKind::by_class:
      picked = by_class(modules, rule);
      break;
    case UnitRuleKind::by_name:
      picked = by_name(modules, rule);
      break;
    case UnitRuleKind::by_size:
      picked = by_size(modules, rule);
      break;
    case UnitRuleKind::given:
      picked = outermost(modules, [&](const Named& named) {
        return std::ranges::count(rule.modules, named.hookable) > 0;
      });
      break;
    case UnitRuleKind::whole_model:
      break;
  }
  auto units = draft_units(modules, picked);
  merge_tied(units);
  if (rule.kind == UnitRuleKind::whole_model && !units.empty()) units.front().name = "model";
  return units;
}

}  // namespace tessera::parallel
