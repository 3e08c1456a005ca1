#include "tessera/parallel/data/units.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/base/pattern.h"

namespace tessera::parallel {
namespace {

using torch::nn::Module;

/// A module under one of its names. What lies in it stands behind it, up to `end`.
struct Named {
  std::string path;
  Module* module;
  nn::Hookable*
      hookable;  // null, too, where an earlier name of the module is the one that counts, and
                 // in a module that does not call what it contains
  size_t owner;  // where the innermost Hookable stands that it is or lies in, or kNone
  bool again;    // it has an earlier name
  size_t end = 0;
};

constexpr size_t kNone = SIZE_MAX;

void append(Module& module, const std::string& path, size_t owner,
            std::unordered_set<const Module*>& seen, std::vector<Named>& modules) {
  const size_t place = modules.size();
  const bool again = !seen.insert(&module).second;
  const bool called = owner == kNone || modules[owner].hookable->calls_what_it_contains();
  auto* hookable = again || !called ? nullptr : dynamic_cast<nn::Hookable*>(&module);
  if (hookable != nullptr) owner = place;
  modules.push_back({path, &module, hookable, owner, again});
  for (const auto& child : module.named_children()) {
    append(*child.value(), path.empty() ? child.key() : path + '.' + child.key(), owner, seen,
           modules);
  }
  modules[place].end = modules.size();
}

/// Every module in the order of registration, the model first.
std::vector<Named> modules_of(Module& model) {
  std::vector<Named> modules;
  std::unordered_set<const Module*> seen;
  append(model, "", kNone, seen, modules);
  return modules;
}

std::string shown(const std::string& path) { return path.empty() ? "the model" : path; }

/// "tessera::models::LlamaBlockImpl" -> "LlamaBlock"
std::string class_name(const Module& module) {
  std::string name = module.name();
  const auto scope = name.rfind("::");
  if (scope != std::string::npos) name.erase(0, scope + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

bool has_parameters(const Module& module) {
  return !direct_parameters(module).empty() ||
         std::ranges::any_of(module.children(),
                             [](const auto& child) { return has_parameters(*child); });
}

/// One flag for each module: is it a unit?
using Picked = std::vector<bool>;

/// The outermost hookable modules inside of the model that have or borrow parameters and of which
/// `pick` says yes. Modules without parameters have nothing to gather or reduce.
template <typename Pick>
Picked outermost(const std::vector<Named>& modules, const Pick& pick) {
  Picked picked(modules.size());
  for (size_t i = 1; i < modules.size(); i = picked[i] ? modules[i].end : i + 1) {
    const auto& named = modules[i];
    picked[i] = named.hookable && pick(named) && has_parameters(*named.module);
  }
  return picked;
}

Picked by_class(const std::vector<Named>& modules, const UnitRule& rule) {
  std::set<std::string> present;
  for (const auto& named : std::span(modules).subspan(1)) {
    if (named.hookable) present.insert(class_name(*named.module));
  }
  for (const auto& name : rule.classes) {
    if (present.contains(name) || rule.is_stage) continue;
    const auto is_there = [&](const Named& named) { return class_name(*named.module) == name; };
    if (std::ranges::any_of(modules, is_there)) {
      user_error("units by class: expected {} to be a module derived from tessera::nn::Hookable",
                 name);
    }
    user_error("units by class: no module of class {} in the model{}", name,
               did_you_mean(name, std::vector(present.begin(), present.end())));
  }
  return outermost(modules, [&](const Named& named) {
    return std::ranges::count(rule.classes, class_name(*named.module)) > 0;
  });
}

Picked by_name(const std::vector<Named>& modules, const UnitRule& rule) {
  std::vector<std::string> paths;
  for (const auto& named : modules) {
    if (named.hookable) paths.push_back(named.path);
  }
  for (const auto& pattern : rule.patterns) {
    const auto fits = [&](const Named& named) {
      return named.hookable && matches(pattern, named.path) && has_parameters(*named.hookable);
    };
    if (std::ranges::none_of(modules, fits) && !rule.is_stage) {
      user_error("unit_patterns: {} matches no hookable module with parameters{}", pattern,
                 did_you_mean(pattern, paths));
    }
  }
  return outermost(modules, [&](const Named& named) {
    return std::ranges::any_of(rule.patterns,
                               [&](const auto& pattern) { return matches(pattern, named.path); });
  });
}

/// Sums of stretches of numbers that change, in O(log n) each: Fenwick, Software: Practice and
/// Experience 24, 1994.
class Sums {
 public:
  explicit Sums(size_t size) : sums_(size + 1) {}
  void add(size_t place, int64_t number) {
    for (size_t i = place + 1; i < sums_.size(); i += i & -i) sums_[i] += number;
  }
  int64_t before(size_t end) const {
    int64_t sum = 0;
    for (; end > 0; end -= end & -end) sum += sums_[end];
    return sum;
  }

 private:
  std::vector<int64_t> sums_;
};

Picked by_size(const std::vector<Named>& modules, const UnitRule& rule) {
  const auto size_of = [&](const torch::Tensor& parameter) {
    return rule.num_elements ? rule.num_elements(parameter) : parameter.numel();
  };
  Sums sizes(modules.size());  // of the parameters not yet in a unit
  std::unordered_map<const void*, std::vector<size_t>> users;  // of these parameters
  for (size_t i = 0; i < modules.size(); ++i) {
    for (const auto& parameter : modules[i].module->parameters(/*recurse=*/false)) {
      sizes.add(i, size_of(parameter));
      users[parameter.unsafeGetTensorImpl()].push_back(i);
    }
  }
  Picked picked(modules.size());
  // Innermost first: in reverse order of registration every module comes after what it contains.
  for (size_t i = modules.size(); --i > 0;) {
    const size_t end = modules[i].end;
    if (!modules[i].hookable || sizes.before(end) - sizes.before(i) < rule.min_num_params) continue;
    for (size_t j = i; j < end; j = picked[j] ? modules[j].end : j + 1) {
      for (const auto& parameter : modules[j].module->parameters(/*recurse=*/false)) {
        const auto taken = users.extract(parameter.unsafeGetTensorImpl());
        if (taken.empty()) continue;
        for (const size_t user : taken.mapped()) sizes.add(user, -size_of(parameter));
      }
    }
    picked[i] = true;
  }
  return picked;
}

Picked given(const std::vector<Named>& modules, const UnitRule& rule) {
  if (rule.modules.empty() && !rule.is_stage) {
    user_error(
        "units given: expected at least one module, got none; list them in UnitRule::modules or "
        "choose another kind");
  }
  std::unordered_map<const nn::Hookable*, std::string> present;
  for (const auto& named : modules) {
    if (named.hookable) present.emplace(named.hookable, shown(named.path));
  }
  for (size_t i = 0; i < rule.modules.size(); ++i) {
    const auto* module = rule.modules[i];
    if (!present.contains(module)) {
      user_error(
          "units given: expected modules of the model, got {} as UnitRule::modules[{}]; register "
          "it or leave it out",
          module ? class_name(*module) : "null", i);
    }
    if (!has_parameters(*module)) {
      user_error("units given: expected modules with parameters, got {} ({}); leave it out",
                 present.at(module), class_name(*module));
    }
  }
  const std::unordered_set<const nn::Hookable*> wanted(rule.modules.begin(), rule.modules.end());
  return outermost(modules, [&](const Named& named) { return wanted.contains(named.hookable); });
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
  const auto parameters = direct_parameters(*named.module);
  const auto lent = [&](const auto& parameter) {
    return borrowed.contains(parameter.unsafeGetTensorImpl());
  };
  return named.hookable ? !parameters.empty() : !std::ranges::all_of(parameters, lent);
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

/// Units in the order of registration: picked modules, and what lies between them.
std::vector<UnitModules> draft_units(const std::vector<Named>& modules, const Picked& picked) {
  std::vector<UnitModules> units;
  std::unordered_set<size_t> seen;
  const auto borrowed = borrowed_parameters(modules);
  size_t covered = 0;  // where the picked modules so far and what lies in them end
  bool open = false;   // may a leftover module join the last unit?
  for (size_t i = 0; i < modules.size(); ++i) {
    const auto& named = modules[i];
    if (picked[i]) {
      units.push_back({named.path, {named.hookable}});
      covered = std::max(covered, named.end);
      open = false;
      continue;
    }
    if (i < covered || named.again || named.owner == kNone || !uses_parameters(named, borrowed) ||
        !seen.insert(named.owner).second) {
      continue;
    }
    const auto& owner = modules[named.owner];
    if (!open) units.push_back({});
    auto& name = units.back().name;
    if (open) name += "+";
    name += owner.path.empty() ? "root" : last_part(owner.path);
    units.back().modules.push_back(owner.hookable);
    open = true;
  }
  return units;
}

/// A plain module that lies in no Hookable may have parameters of a unit (tied), but no others.
void check_plain_modules(const std::vector<Named>& modules, const std::vector<UnitModules>& units) {
  if (modules.front().hookable) return;  // everything lies in the model
  std::unordered_set<const void*> of_units;
  for (const auto& parameters : parameters_of(units)) {
    for (const auto& parameter : parameters) of_units.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& named : modules) {
    if (named.owner != kNone) continue;
    for (const auto& parameter : named.module->parameters(/*recurse=*/false)) {
      if (of_units.contains(parameter.unsafeGetTensorImpl())) continue;
      user_error(
          "{}: expected a module derived from tessera::nn::Hookable, got {}; make it a member of "
          "one, and call that one through tessera::nn::Hooked",
          shown(named.path), named.module->name());
    }
  }
}

/// Units that share a parameter become one, in the place of the first.
void merge_tied(std::vector<UnitModules>& units) {
  std::vector<size_t> place(units.size());  // of an earlier unit that it joins, or its own
  std::iota(place.begin(), place.end(), 0);
  const auto first_of = [&](size_t unit) {
    while (place[unit] != unit) unit = place[unit] = place[place[unit]];
    return unit;
  };
  std::unordered_map<const void*, size_t> users;
  const auto parameters = parameters_of(units);
  for (size_t i = 0; i < units.size(); ++i) {
    for (const auto& parameter : parameters[i]) {
      const size_t user = users.emplace(parameter.unsafeGetTensorImpl(), i).first->second;
      const auto [first, second] = std::minmax({first_of(user), first_of(i)});
      place[second] = first;
    }
  }
  for (size_t i = 0; i < units.size(); ++i) {
    if (place[i] == i) continue;
    auto& into = units[first_of(i)];
    into.name += fmt::format("+{}", last_part(units[i].name));
    into.modules.insert(into.modules.end(), units[i].modules.begin(), units[i].modules.end());
    units[i].modules.clear();
  }
  std::erase_if(units, [](const auto& unit) { return unit.modules.empty(); });
}

/// `elsewhere`: the modules of all units.
void collect(const Module& module, const std::unordered_set<const Module*>& elsewhere,
             std::unordered_set<const void*>& seen, std::vector<torch::Tensor>& parameters) {
  for (const auto& parameter : direct_parameters(module)) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  }
  for (const auto& child : module.children()) {
    if (!elsewhere.contains(child.get())) collect(*child, elsewhere, seen, parameters);
  }
}

/// Drops units whose parameters are all in other ones: a child of two parents leaves the second one
/// such a unit.
void drop_empty(std::vector<UnitModules>& units) {
  const auto parameters = parameters_of(units);
  std::vector<UnitModules> kept;
  for (size_t i = 0; i < units.size(); ++i) {
    if (!parameters[i].empty()) kept.push_back(std::move(units[i]));
  }
  units = std::move(kept);
}

}  // namespace

std::vector<torch::Tensor> direct_parameters(const Module& module) {
  auto parameters = module.parameters(/*recurse=*/false);
  if (const auto* hookable = dynamic_cast<const nn::Hookable*>(&module)) {
    for (auto& borrowed : hookable->borrowed_parameters()) parameters.push_back(borrowed);
  }
  return parameters;
}

std::vector<std::vector<torch::Tensor>> parameters_of(const std::vector<UnitModules>& units) {
  std::unordered_set<const Module*> elsewhere;
  for (const auto& unit : units) elsewhere.insert(unit.modules.begin(), unit.modules.end());
  std::vector<std::vector<torch::Tensor>> parameters(units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    std::unordered_set<const void*> seen;
    for (const auto* module : units[i].modules) collect(*module, elsewhere, seen, parameters[i]);
  }
  return parameters;
}

std::vector<UnitModules> make_units(Module& model, const UnitRule& rule) {
  const auto modules = modules_of(model);
  Picked picked(modules.size());
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
      picked = given(modules, rule);
      break;
    case UnitRuleKind::whole_model:
      break;
  }
  auto units = draft_units(modules, picked);
  drop_empty(units);
  check_plain_modules(modules, units);
  if (units.empty() && !rule.is_stage) {
    user_error(
        "the model: expected parameters, got none in its modules; register what has them "
        "(register_parameter, register_module)");
  }
  merge_tied(units);
  if (rule.kind == UnitRuleKind::whole_model && !units.empty()) units.front().name = "model";
  return units;
}

}  // namespace tessera::parallel
