// Hugging Face's config.json of language models: read and written. Names as transformers writes
// them (versions 4 and 5), defaults as its version 5 has them.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/models/shape.h"

namespace tessera::models {

/// Reads a config.json of any registered model_type (spec.h). An absent key means what it means in
/// transformers. UserError names file, key and what was expected, and refuses by name what a family
/// does not do here. Dropout is not read: it is training's matter.
ModelShape read_model_shape(const std::filesystem::path& config_json);

/// The same of a configuration that was read from `where`.
ModelShape model_shape_of(const nlohmann::json& config, const std::string& where);

/// The model_type by which transformers builds this shape.
std::string hf_model_type(const ModelShape& shape);

/// The config.json by which transformers 4 and 5 load this model: model_type, architectures and
/// every number of the shape. read_model_shape reads it back to the same shape (dropout apart).
nlohmann::ordered_json to_hf_config(const ModelShape& shape);

}  // namespace tessera::models
