#include "tessera/models/hf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/models/spec.h"

namespace tessera::models {
namespace {

const HfType& type_named(const FamilySpec& spec, const std::string& name) {
  return *std::ranges::find(spec.types, name, &HfType::name);
}

}  // namespace

ModelShape read_model_shape(const std::filesystem::path& config_json) {
  return model_shape_of(read_json_object(config_json, "model_type"), config_json.string());
}

ModelShape model_shape_of(const nlohmann::json& config, const std::string& where) {
  const JsonKeys keys(where, config);
  const auto type = keys.text("model_type");
  const auto* spec = find_spec(type);
  keys.refuse_unless(spec != nullptr, "model_type", either_of(model_types()));
  auto shape = spec->read(keys, type_named(*spec, type));
  if (const auto problem = shape_problem(shape)) {
    const auto name = spec->config_names.find(problem->field);
    user_error("{}: {}: {}", where,
               name == spec->config_names.end() ? problem->field : name->second, problem->message);
  }
  return shape;
}

std::string hf_model_type(const ModelShape& shape) { return spec_of(shape.family).type_of(shape); }

nlohmann::ordered_json to_hf_config(const ModelShape& shape) {
  const auto& spec = spec_of(shape.family);
  const auto& type = type_named(spec, spec.type_of(shape));
  nlohmann::ordered_json config{{"architectures", {type.architecture}}, {"model_type", type.name}};
  spec.write(shape, config);
  return config;
}

}  // namespace tessera::models
