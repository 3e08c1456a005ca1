// The shape of a stored model.
#pragma once

#include <cstdint>

#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/models/shape.h"

namespace tessera::inference {

/// UserError: no config.json, a family that is not here, heads that `num_ranks` do not divide.
models::ModelShape stored_shape(const checkpoint::TrainingSource& training, int64_t num_ranks);

}  // namespace tessera::inference
