// A model with adapters: what is trained of it, and what it begins with.
#pragma once

#include <functional>
#include <string>

#include "tessera/models/adapter.h"
#include "tessera/models/language_model.h"

namespace tessera::models {

/// Puts the adapters of `spec` beside the model's matrices (nn/low_rank.h): float32, uninitialised.
/// What is not of trained_parameters(spec) is frozen. To be called before the model is divided in
/// any way. UserError: what adapted_modules() refuses.
void adapt(LanguageModel& model, const AdapterSpec& spec);

/// Writes first values of elements begin .. of a whole model's parameter into `part` [n].
using FirstValues =
    std::function<void(const std::string& name, int64_t begin, const torch::Tensor& part)>;

/// What stands beside an adapter.
struct BaseValues {
  FirstValues values;  ///< of the model's own parameters
  /// The weights that modules begin with: `values` as they are kept, plus what an adapter adds at first
  /// (PiSSA). Read for their norms, which are DoRA's first magnitudes.
  FirstValues begun_with;
};

/// First values of an adapted model. B is zero (of an embedding: A), so that the model computes what it
/// did; the other is drawn from (seed, name, position). orthogonal: both are drawn, as PEFT does it. Of
/// pissa the values are elsewhere (train/pissa.h).
FirstValues adapted_values(const AdapterSpec& spec, const ModelShape& shape, int64_t seed,
                           BaseValues base);

}  // namespace tessera::models
