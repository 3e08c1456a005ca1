// A training run as other programs store it: under which names a source keeps what a run needs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

struct StoredTraining {
  using Names = std::map<std::string, std::string, std::less<>>;  ///< by parameter: in the source

  Names parameters;
  /// The tensors of the optimizer by name of the state ("exp_avg", "exp_avg_sq").
  std::map<std::string, Names, std::less<>> states;
  std::optional<int64_t> step;  ///< optimizer steps taken, the same for every parameter
};

/// Makes `step` of what states["step"] names, each one number, and takes it out of the states.
/// UserError: no whole number, or another one for another parameter.
void take_step(const TensorSource& source, StoredTraining& training);

}  // namespace tessera::checkpoint
