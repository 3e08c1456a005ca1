// What ranks of other dimensions than the data's hold of a parameter.
#pragma once

#include "tessera/mesh/mesh.h"

namespace tessera::parallel {

/// Which of the ranks that hold different parts of a model (tensor, pipeline) hold one parameter
/// alike.
struct Sharing {
  mesh::Axis holders = mesh::Axis();  ///< of size 1: this rank alone
  bool summands = false;  ///< their gradients of it are summands; false: each has the whole one

  bool like(const Sharing& other) const {
    return holders.name() == other.holders.name() && summands == other.summands;
  }
};

}  // namespace tessera::parallel
