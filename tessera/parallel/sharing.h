// What ranks of other dimensions than the data's hold of a parameter.
#pragma once

#include "tessera/mesh/mesh.h"

namespace tessera::parallel {

/// Of ranks that hold different parts of a model (tensor, pipeline), those that hold this parameter
/// alike.
struct Sharing {
  mesh::Axis sum = mesh::Axis();  ///< ranks whose gradients of it are summands; of size 1: each has
                                  ///< the whole one
  int copies = 1;                 ///< ranks that hold the same values ..
  int copy = 0;                   ///< .. and which of them this is

  bool like(const Sharing& other) const {
    return sum.size() == other.sum.size() && copies == other.copies;
  }
};

}  // namespace tessera::parallel
