// The modules that transformers builds from a config.json: its AutoModel, the model without a head
// of any task, as Accelerate's `estimate-memory` counts it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/estimate/module_tree.h"
#include "tessera/models/shape.h"

namespace tessera::estimate {

struct Version {
  int major = 0, minor = 0;
  auto operator<=>(const Version&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14
};

/// "4.40.0.dev0" -> {4, 40}; none if the text does not begin with two numbers.
std::optional<Version> parse_version(const std::string& text);

struct Architecture {
  std::string type;                           ///< model_type
  Module modules;                             ///< of transformers' AutoModel
  std::optional<models::ModelShape> shape;    ///< of the families that train here
  std::optional<Version> old_rotary_version;  ///< of the transformers whose rotary tables count
};

/// Every model_type that trains here, and bert, t5, vit and resnet.
const std::vector<std::string>& known_model_types();

/// `config` as read from `where`. Up to version 4.40 each layer of a Llama kept its rotary tables
/// as buffers, which count. `version`: of transformers; none: the one that wrote `config`
/// (transformers_version), or the newest. UserError names file and key.
Architecture architecture_of(const nlohmann::json& config, const std::string& where,
                             std::optional<Version> version = {});

Architecture architecture_of(const models::ModelShape& shape);  ///< of a preset

}  // namespace tessera::estimate
