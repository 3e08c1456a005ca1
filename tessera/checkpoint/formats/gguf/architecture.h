// What llama.cpp knows a model as: its architecture, the names of its tensors, the keys of its sizes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/formats/gguf/file.h"
#include "tessera/models/shape.h"

namespace tessera::checkpoint {

/// What llama.cpp makes of a model_type.
struct LlamaCppType {
  std::string_view model_type, architecture;
  bool interleaved = false;  ///< rotates neighbouring columns: rows of q and k change places
};

/// A model that llama.cpp computes as we do.
struct LlamaCppModel {
  models::ModelShape shape;
  LlamaCppType kind;
};

/// UserError: a model that llama.cpp does not know, or of which it would compute something else, by
/// the key of config.json (`where`: for messages).
LlamaCppModel llama_cpp_model(const nlohmann::json& config, const std::string& where);

/// How llama.cpp has a tensor otherwise than its parameters.
enum class GgufChange {
  none,
  interleaved,  ///< row 2 i + h of a head is row i of its half h
  transposed,
  one_added  ///< to each value, in f32
};

struct GgufName {
  std::string name;               ///< llama.cpp's
  std::vector<std::string> ours;  ///< parameters whose rows it has, one after the other
  GgufChange change = GgufChange::none;
};
std::vector<GgufName> gguf_names(const LlamaCppModel& model);

/// Tensors that no parameter is: the factors by which frequencies are divided.
struct GgufFactors {
  std::string name;
  std::vector<float> values;
};
std::vector<GgufFactors> gguf_factors(const models::ModelShape& shape);

/// Keys of the architecture: sizes, epsilon, positions, windows, caps.
GgufMetadata architecture_metadata(const LlamaCppModel& model);

}  // namespace tessera::checkpoint
