// What ranks of other axes than the data's hold of a parameter.
#pragma once

#include "tessera/mesh/mesh.h"

namespace tessera::parallel {

/// Which of the ranks that hold different parts of a model (tensor, pipeline) hold one parameter
/// alike.
struct Replication {
  mesh::Axis ranks = mesh::Axis();  ///< of size 1: this rank alone
  bool partial_gradients = false;   ///< theirs are to be summed; false: each has the whole one

  bool like(const Replication& other) const {
    return ranks.name() == other.ranks.name() && partial_gradients == other.partial_gradients;
  }
};

}  // namespace tessera::parallel
