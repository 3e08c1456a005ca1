// A stored model over the ranks that share its work.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/base/choices.h"
#include "tessera/base/weight_format.h"
#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/config/stored_job.h"
#include "tessera/mesh/mesh.h"
#include "tessera/models/language_model.h"

namespace tessera::inference {

struct StoredModel {
  std::shared_ptr<models::LanguageModel> model;  ///< on the mesh's device, divided over its axis tp
  std::filesystem::path assets;                  ///< tokenizer and the like; "": there are none
  config::StoredJob job;                         ///< what trained it, where that is known
  std::string note;  ///< Pretrained::note_of_unread(), of checkpoint/formats/pretrained.h
};

/// Reads what checkpoint::open_training opens, without an optimizer's state: a checkpoint of any layout,
/// a Hugging Face folder, a GGUF file of a model that `from` says. With a checkpoint of an adapter
/// come the weights that it was trained beside, from where they lay. Each rank reads its part. `dtype`; none: as most of it is stored (float16 becomes float32 on a CPU).
/// `weights`: how the linear layers of blocks are kept, quantised as they are read.
/// UserError: no config.json, a family that is not here, parameters that are missing, other weights
/// than an adapter's, heads that the ranks do not divide.
StoredModel load_model(checkpoint::TrainingOptions from, std::optional<FloatType> dtype,
                       const mesh::DeviceMesh& mesh,
                       WeightFormat weights = WeightFormat::as_stored);

}  // namespace tessera::inference
