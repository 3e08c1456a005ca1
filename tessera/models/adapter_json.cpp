#include "tessera/models/adapter_json.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

using nlohmann::json;

constexpr const char* kIterations = "pissa_iterations";

/// Calls visit(name, member) for each member that is no enum.
void visit_members(auto& spec, const auto& visit) {
  visit("rank", spec.rank);
  visit("alpha", spec.alpha);
  visit("dropout", spec.dropout);
  visit("rslora", spec.rslora);
  visit("targets", spec.targets);
  visit("exclude", spec.exclude);
  visit("layers", spec.layers);
  visit("rank_pattern", spec.rank_pattern);
  visit("alpha_pattern", spec.alpha_pattern);
  visit("modules_to_save", spec.modules_to_save);
}

template <typename Choice>
void read_choice(const json& values, const char* name, Choice& choice, const std::string& where) {
  const auto text = values.at(name).get<std::string>();
  const auto found = value_named<Choice>(text);
  if (!found) user_error("{}: adapter: {}: unknown '{}'", where, name, text);
  choice = *found;
}

}  // namespace

json to_json(const AdapterSpec& spec) {
  json values{
      {"type", text_of(spec.type)}, {"bias", text_of(spec.bias)}, {"init", text_of(spec.init)}};
  visit_members(spec, [&](const char* name, const auto& member) { values[name] = member; });
  if (spec.pissa_iterations != 0) values[kIterations] = spec.pissa_iterations;
  return values;
}

AdapterSpec adapter_spec_of(const json& values, const std::string& where) {
  AdapterSpec spec;
  try {
    read_choice(values, "type", spec.type, where);
    read_choice(values, "bias", spec.bias, where);
    read_choice(values, "init", spec.init, where);
    visit_members(spec, [&](const char* name, auto& member) { values.at(name).get_to(member); });
    if (values.contains(kIterations)) values[kIterations].get_to(spec.pissa_iterations);
  } catch (const json::exception& error) {
    user_error("{}: adapter: expected the settings of one, got {}", where, error.what());
  }
  return spec;
}

}  // namespace tessera::models
