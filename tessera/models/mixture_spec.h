// What families have in common some of whose blocks have a mixture of experts as their feed-forward
// (mixture.h): its parameters and what it keeps.
#pragma once

#include <string_view>

#include "tessera/models/spec.h"

namespace tessera::models {

/// What files call a router's selection bias, after its path; no parameter, as it is moved by hand.
inline constexpr std::string_view kSelectionBias = ".e_score_correction_bias";

/// Puts the mixture's parameters in the place of the feed-forward's, unless `shape` has no experts.
void add_mixture(const ModelShape& shape, const MixtureNames& names, ParameterSpecs& parameters);

/// Adds to the numbers of a block with a feed-forward as wide as one expert what its mixture keeps
/// beyond that.
void add_mixture(const ModelShape& part, const MixtureNames& names, ActivationNumbers& numbers);

}  // namespace tessera::models
