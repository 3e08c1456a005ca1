// What families have in common some of whose blocks have a mixture of experts as their feed-forward
// (mixture.h): its parameters and what it keeps.
#pragma once

#include <string>

#include "tessera/models/spec.h"

namespace tessera::models {

/// What a family's files call the parts of a mixture, within a block.
struct MixtureNames {
  std::string mixture = "mlp", router = "gate";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  ///< of an expert
  std::string shared;       ///< the expert that every token takes besides
  std::string shared_gate;  ///< of one number, how far it opens; empty: there is none
};

/// Puts the mixture's parameters in the place of the feed-forward's, unless `shape` has no experts.
void add_mixture(const ModelShape& shape, const MixtureNames& names, ParameterSpecs& parameters);

/// Adds to the numbers of a block with a feed-forward as wide as one expert what its mixture keeps
/// beyond that.
void add_mixture(const ModelShape& part, const MixtureNames& names, ActivationNumbers& numbers);

}  // namespace tessera::models
