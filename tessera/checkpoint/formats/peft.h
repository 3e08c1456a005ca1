// Adapters in PEFT's folders: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/source_view.h"
#include "tessera/models/peft_config.h"

namespace tessera::checkpoint {

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";

/// Does the folder have an adapter_config.json?
bool is_peft(const std::filesystem::path& folder);

/// A stored adapter of a model.
class PeftAdapter {
 public:
  /// Maps the weights and checks that they are what the settings train of such a model. Where files
  /// fuse modules, each part has the same A and its rows of B, and so have an expert's gate and up where an
  /// adapter is of all experts (target_parameters); base weights that PEFT saves
  /// beside an adapter of a table are left alone. UserError: no such files (or older ones, .bin, with
  /// the remedy), settings as models::read_peft_config refuses, a tensor that is missing, too many or
  /// of another shape, as of an adapter for another model.
  PeftAdapter(const std::filesystem::path& folder, const models::ModelShape& shape);

  const std::filesystem::path& folder() const { return folder_; }
  const models::PeftConfig& config() const { return config_; }
  /// By the names of models::trained_parameters.
  const TensorSource& tensors() const { return tensors_; }

 private:
  std::filesystem::path folder_;
  models::PeftConfig config_;
  SafetensorsFile stored_;
  SourceView tensors_;
};

/// UserError: it began with a change of its base (PiSSA), so that it is none of the base as it is stored.
void refuse_changed_base(const PeftAdapter& adapter);

struct PeftWriteOptions {
  models::PeftConfig config;
  std::optional<DType> dtype;  ///< none: as the tensors are
  models::ExpertFormat experts = models::ExpertFormat::fused;
};

/// UserError: none of PEFT's releases reads a model's experts in this format.
void check_expert_format(models::ExpertFormat format, const models::ModelShape& shape);

/// Writes the tensors of models::trained_parameters as a folder that PEFT 0.21 loads, which appears
/// when it is whole. Adapters of modules that files fuse become one, of the sum of their ranks.
/// Fused, adapters of experts are those of the tensors that transformers 5 has in memory
/// (peft_experts.h). Memory: a module's adapter, or a layer's experts'. UserError: `destination` exists, a
/// tensor that is missing or of another shape; DoRA on a part of a fused module alone; of fused experts DoRA,
/// parameters trained whole, adapters of only some.
void write_peft(const TensorSource& trained, const models::ModelShape& shape,
                const std::filesystem::path& destination, const PeftWriteOptions& options);

}  // namespace tessera::checkpoint
