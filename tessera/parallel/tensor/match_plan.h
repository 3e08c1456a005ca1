// Which rule of a tensor plan each module of a model follows.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "tessera/nn/tensor_plan.h"

namespace tessera::parallel {

struct RuledModule {
  std::string path;
  torch::nn::Module* module;
  const nn::TensorRule* rule = nullptr;  ///< of the plan
};

/// Each module of `model` that a rule of `plan` matches, with that rule. ValueError, in one line: a rule that no
/// module matches; a module that two rules match; parameters that none does.
std::vector<RuledModule> match_plan(torch::nn::Module& model, const nn::TensorPlan& plan);

/// The name of what is called `name` in the module at `path`.
std::string joined(const std::string& path, const std::string& name);

}  // namespace tessera::parallel
