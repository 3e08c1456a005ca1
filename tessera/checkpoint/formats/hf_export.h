// Weights as a folder that Hugging Face's transformers loads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

struct HfExportOptions {
  std::vector<std::string> names;  ///< tensors to write, in this order; empty: all, by name
  nlohmann::json config = nlohmann::json::object();  ///< config.json, but for its dtype
  std::optional<DType> dtype;        ///< of every float in the export; none: as it is stored
  std::filesystem::path carry_from;  ///< folder whose tokenizer and generation files come along
  std::string chat_template;         ///< instead of the tokenizer's; "": that
  std::string model_card;            ///< README.md; "": none
  int64_t max_shard_bytes = 5'000'000'000;  ///< of tensors in one file
};

/// What transformers calls a dtype of floats.
std::string config_name(DType dtype);

/// Writes the folder `destination`: model.safetensors, or, above `max_shard_bytes`,
/// model-00001-of-0000N.safetensors and model.safetensors.index.json (filled in the order of
/// `names`; a larger tensor has a file of its own), config.json with the exported dtype, and the
/// files carried along. It appears when all of it is written; until then, and if anything fails,
/// nothing stands there. Tensors whose dtype stays are equal byte for byte; those that are no
/// floats always are. Memory: a few MB. UserError: `destination` exists, an unknown name, a dtype
/// that is no float. SystemError: disk full, folder not writable.
void export_hf(const TensorSource& source, const std::filesystem::path& destination,
               const HfExportOptions& options);

}  // namespace tessera::checkpoint
