// PEFT's adapter_config.json: read and written, as its version 0.21 has it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "tessera/models/adapter.h"

namespace tessera::models {

struct PeftConfig {
  AdapterSpec spec;
  std::string base;      ///< base_model_name_or_path: a name on the Hub, or a path; "": not said
  std::string revision;  ///< of it; "": not said
  /// A tied table that is trained whole stays tied. Without it PEFT trains a copy of one of the two.
  bool keeps_tied = false;
  /// Parameters that have adapters, as the file names them; after take_target_parameters the tensors
  /// of all experts of a layer among them (Named::in_tensor).
  std::set<std::string> target_parameters;
  bool has_no_modules = false;  ///< beside target_parameters: target_modules is empty, not absent

  bool operator==(const PeftConfig&) const = default;
};

/// UserError names file and key: no LoRA; a setting that makes another function of the adapter or of
/// its base than the spec can say (OLoRA's base, biases of B, ..), known or not; DoRA, dropout or PiSSA
/// beside target_parameters, as in PEFT; a value of another type. What only training or PEFT's own
/// memory is concerned with is left alone.
PeftConfig read_peft_config(const std::filesystem::path& adapter_config_json);

/// Makes the file's target_parameters targets of the spec, as whole paths, of which no block is asked.
/// UserError: one that is neither all experts of a layer nor a matrix of a block.
void take_target_parameters(PeftConfig& config, const ModelShape& shape);

/// What a fused module needs in place of its parts' ranks and alphas.
struct PeftModule {
  std::string path;
  int64_t rank = 0;
  double alpha = 0;
  bool is_parameter = false;  ///< `path` is a parameter's, among target_parameters
};

/// The whole file for adapters of these modules, by the paths that files have: targets are names where
/// these say exactly which, else paths; ranks and alphas that differ are patterns. Beside
/// target_parameters, of which PEFT knows fewer ways to begin, init is what it always knows.
nlohmann::ordered_json to_peft_config(const PeftConfig& config, const ModelShape& shape,
                                      const std::vector<PeftModule>& modules);

}  // namespace tessera::models
