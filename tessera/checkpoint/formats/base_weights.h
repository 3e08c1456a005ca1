// Which weights an adapter was trained beside, as its checkpoints say: they hold the adapter alone.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/index.h"

namespace tessera::checkpoint {

/// Names, dtypes and shapes, and three stretches of each tensor, as one SHA-256: another model's
/// most likely differs. `path`: what Safetensors opens.
std::string sample_of_weights(const std::filesystem::path& path);

struct BaseWeights {
  /// A stored adapter that is part of the base.
  struct Adapter {
    std::string path;    ///< PEFT's folder, absolute
    std::string sample;  ///< sample_of_weights of its tensors

    bool operator==(const Adapter&) const = default;
  };

  std::string path;               ///< where they lay, absolute; empty: drawn from a seed
  std::string sample;             ///< sample_of_weights
  std::vector<Adapter> adapters;  ///< in their order
  nlohmann::json adapter;         ///< its settings (models/adapter_json.h)

  bool operator==(const BaseWeights&) const = default;
};

/// What the state of an index has at "base" and "adapter"; none: the checkpoint is of a whole model.
std::optional<BaseWeights> base_weights_of(const nlohmann::json& state);
void put_base_weights(const BaseWeights& base, nlohmann::json& state);

BaseWeights::Adapter base_adapter(const std::filesystem::path& folder);

/// UserError with `where`: there are no such weights or adapters any more, or others stand there.
void check_base_weights(const BaseWeights& base, const std::string& where);

}  // namespace tessera::checkpoint
