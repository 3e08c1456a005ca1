// Writing Hugging Face's config.json; reading it is read_model_shape (config/model_shape.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/config/model_shape.h"

namespace tessera::config {

/// The model_type by which transformers builds this shape: gpt2, or the first of llama, mistral,
/// qwen2 and qwen3 that has all its parts (a Mistral without a window is a llama).
std::string hf_model_type(const ModelShape& shape);

/// The config.json by which transformers 4 and 5 load this model: model_type, architectures and
/// every number of the shape. read_model_shape reads it back to the same shape (dropout apart).
nlohmann::ordered_json to_hf_config(const ModelShape& shape);

}  // namespace tessera::config
