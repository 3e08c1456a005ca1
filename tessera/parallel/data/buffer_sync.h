// A model's buffers (running means and the like), which no optimizer updates.
#pragma once

#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/parallel/data/options.h"

namespace tessera::parallel {

using NamedBuffers = std::vector<std::pair<std::string, torch::Tensor>>;

/// Brings the buffers to the same values on all ranks of `axis`, in one message for each dtype and
/// device. Collective, but for per_rank.
void synchronise(const NamedBuffers& buffers, BufferSync how, const mesh::Axis& axis);

}  // namespace tessera::parallel
