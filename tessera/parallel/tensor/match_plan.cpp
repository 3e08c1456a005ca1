#include "tessera/parallel/tensor/match_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/nearest.h"
#include "tessera/base/pattern.h"

namespace tessera::parallel {

std::vector<RuledModule> match_plan(torch::nn::Module& model, const nn::TensorPlan& plan) {
  std::vector<RuledModule> modules;
  std::vector<std::string> paths;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    modules.push_back({item.key(), item.value().get()});
    paths.push_back(item.key());
  }
  for (const auto& rule : plan) {
    bool found = false;
    for (auto& named : modules) {
      if (!matches(rule.pattern, named.path)) continue;
      TORCH_CHECK_VALUE(named.rule == nullptr, "tensor plan: ", named.path,
                        ": expected one rule for it, got '", named.rule->pattern, "' and '",
                        rule.pattern, "'");
      named.rule = &rule;
      found = true;
    }
    TORCH_CHECK_VALUE(found, "tensor plan: '", rule.pattern, "' matches no module",
                      did_you_mean(rule.pattern, paths));
  }
  std::vector<std::string> left;
  for (const auto& named : modules) {
    if (named.rule != nullptr) continue;
    for (const auto& item : named.module->named_parameters(/*recurse=*/false)) {
      left.push_back(joined(named.path, item.key()));
    }
  }
  for (const auto& item : model.named_parameters(/*recurse=*/false)) left.push_back(item.key());
  TORCH_CHECK_VALUE(left.empty(), "tensor plan: no rule for ",
                    fmt::format("{}", fmt::join(left, ", ")),
                    "; add one for each, such as per_position");
  std::erase_if(modules, [](const auto& named) { return named.rule == nullptr; });
  return modules;
}

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

}  // namespace tessera::parallel
