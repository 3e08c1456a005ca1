// Published models whose config.json is known without a file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::estimate {

/// What its config.json says of the model's size: of a preset (config/model_shape.h), or of a
/// published model by its name on the Hub, with or without the part before the slash, in upper or
/// lower case. "-Instruct" may follow: it has the same modules.
std::optional<nlohmann::json> known_config(const std::string& name);

std::vector<std::string> known_model_names();  ///< presets, then the published ones

}  // namespace tessera::estimate
