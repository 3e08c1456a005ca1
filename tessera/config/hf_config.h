// Hugging Face's config.json as JSON: read and written. read_model_shape (config/model_shape.h)
// reads a file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/config/model_shape.h"

namespace tessera::config {

/// The shape that read_model_shape would give, of a configuration that was read from `where`.
ModelShape model_shape_of(const nlohmann::json& config, const std::string& where,
                          const std::string& expected_type = "auto");

/// The model_type by which transformers builds this shape: gpt2, or the first of llama, mistral,
/// qwen2 and qwen3 that has all its parts (a Mistral without a window is a llama).
std::string hf_model_type(const ModelShape& shape);

/// The config.json by which transformers 4 and 5 load this model: model_type, architectures and
/// every number of the shape. read_model_shape reads it back to the same shape (dropout apart).
nlohmann::ordered_json to_hf_config(const ModelShape& shape);

}  // namespace tessera::config
