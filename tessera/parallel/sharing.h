// What ranks of other dimensions than the data's hold of a parameter.
#pragma once

#include "tessera/mesh/mesh.h"

namespace tessera::parallel {

/// Of ranks that hold different parts of a model (tensor, pipeline), those that hold this parameter
/// alike.
struct Sharing {
  mesh::Axis holders = mesh::Axis();  ///< of size 1: this rank alone
  bool summands = false;  ///< their gradients of it are summands; false: each has the whole one

  bool like(const Sharing& other) const {
    return holders.name() == other.holders.name() && summands == other.summands;
  }
};

}  // namespace tessera::parallel
