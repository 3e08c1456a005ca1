// A model and what its training left behind, in whatever format, under Tessera's names.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/checkpoint/formats/open_source.h"
#include "tessera/checkpoint/index.h"
#include "tessera/checkpoint/source_view.h"

namespace tessera::checkpoint {

struct TrainingOptions {
  std::filesystem::path source;     ///< what open_source opens, or a folder of DcpFolders
  std::filesystem::path optimizer;  ///< the optimizer's folder (DCP); empty: as `source` has it
  /// config.json, or a folder with it (and with weights whose shapes count where `source`, as
  /// DeepSpeed's ZeRO-3, has none); empty: as `source` has it.
  std::filesystem::path config;
  nlohmann::json model;  ///< config.json's content, before that of `config`; null: as that is
  bool with_optimizer = true;
  /// Under the names of our models, without what they do not store (tied heads, buffers).
  bool our_names = true;
  std::optional<DType> dtype;   ///< of parameters that are floats; none: as they are stored
  std::optional<int64_t> step;  ///< optimizer steps taken; none: as the optimizer says, or 0
};

struct TrainingSource {
  std::vector<OpenedSource> stored;  ///< what `tensors` reads
  SourceView tensors;                ///< parameters, and "optimizer/STATE/PARAMETER"
  Index about;                       ///< all but files and tensors; model: null if unknown
  std::optional<double> validation_loss;
  std::vector<std::filesystem::path> assets;  ///< tokenizer and the like
  std::filesystem::path assets_folder;        ///< where they lie; empty: there are none
};

/// A GGUF file's tensors are parameters where a config.json says of which model. UserError: what
/// open_source refuses; an optimizer's state without its parameter or of another
/// shape.
TrainingSource open_training(const TrainingOptions& options);

}  // namespace tessera::checkpoint
