// The adapter that a checkpoint holds, and what it was trained beside.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/formats/base_weights.h"
#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/models/adapter.h"

namespace tessera::checkpoint {

/// What a PiSSA run began with, in PEFT's form, stands beside its checkpoints under this name.
inline constexpr const char* kInitialAdapter = "initial_adapter";

struct StoredAdapter {
  BaseWeights base;
  models::AdapterSpec spec;
  std::filesystem::path initial;  ///< of PiSSA: the folder of what it began with; else empty
};

/// What the checkpoint at `source`, opened as `training`, says of its adapter; none: it is of a whole
/// model.
std::optional<StoredAdapter> stored_adapter(const TrainingSource& training,
                                            const std::filesystem::path& source);

/// One of several adapters whose sum counts.
struct AdapterPart {
  models::AdapterSpec spec;
  std::shared_ptr<const TensorSource> tensors;  ///< by the names of models::trained_parameters
  bool subtracts = false;
};

/// The stored adapters that are part of what this one was trained beside: those below it, and less what PiSSA
/// began with. UserError: one that is not there or does not belong to the model.
std::vector<AdapterPart> parts_of_base(const StoredAdapter& stored,
                                       const models::ModelShape& shape);

/// `base`, by our names, with the parts in it, in float32 where they change it.
std::shared_ptr<const TensorSource> with_parts(std::shared_ptr<const TensorSource> base,
                                               const std::vector<AdapterPart>& parts,
                                               const models::ModelShape& shape);

/// One adapter that has the function of all: their A one below the other, their B side by side with
/// their scales in them (alpha is the rank). `trained` is the last, and says what else is trained
/// and whether there are magnitudes. UserError: one below it that is DoRA or trains modules whole; a
/// module that only those below have where `trained` is DoRA; a sum of ranks above a matrix's.
AdapterPart sum_of_adapters(const std::vector<AdapterPart>& below, const AdapterPart& trained,
                            const models::ModelShape& shape);

}  // namespace tessera::checkpoint
