// Which modules form a unit.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/nn/hooked.h"

namespace tessera::parallel {

/// Modules whose parameters are gathered and reduced together.
struct UnitModules {
  std::string name;
  std::vector<nn::Hookable*> modules;
};

enum class UnitRuleKind {
  by_class,  ///< modules whose class is one of `classes` ("LlamaBlock"; Impl and namespaces aside)
  by_size,   ///< the innermost modules with at least min_num_params parameters not yet in a unit
  by_name,   ///< modules whose path matches one of `patterns` ("model.layers.*")
  given,     ///< `modules`
  whole_model
};

struct UnitRule {
  UnitRuleKind kind = UnitRuleKind::by_size;
  std::vector<std::string> classes, patterns;
  int64_t min_num_params = 1'000'000;
  /// by_size: elements of a parameter; none: its own. Where tensor parallelism left this rank a
  /// part: of the whole, so that all ranks make the same units.
  std::function<int64_t(const torch::Tensor& parameter)> num_elements;
  /// The model is a stage of a larger one: others may have what the classes and patterns match, all
  /// of `modules`, and all parameters.
  bool is_stage = false;
  std::vector<nn::Hookable*> modules;
};

/// The units of a model, in the order in which its modules are registered. Of modules inside each
/// other the outermost that the rule picks is the unit (by_size: the innermost). Parameters that no
/// picked module has form units of their own before, between and after: the innermost Hookable
/// modules that own them. A parameter in several modules (tied) brings them into one unit.
/// UserError: a class or pattern that matches nothing, with the nearest that is there; a given
/// module that is not in the model or has no parameters; a parameter that no Hookable module has,
/// borrows or contains; a model without parameters.
/// Cost: that of LibTorch's list of the modules' names; by_name: times the number of patterns.
std::vector<UnitModules> make_units(torch::nn::Module& model, const UnitRule& rule);

/// A module's own parameters and those that it borrows, without its children's.
std::vector<torch::Tensor> direct_parameters(const torch::nn::Module& module);

/// The parameters of each unit: those of its modules and of what they contain, except where a
/// contained module belongs to another unit; borrowed ones included. Each once in a unit, in order.
std::vector<std::vector<torch::Tensor>> parameters_of(const std::vector<UnitModules>& units);

}  // namespace tessera::parallel
