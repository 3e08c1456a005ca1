// First values of quantised weights: made of the whole weights, a part at a time.
#pragma once

#include <vector>

#include "tessera/nn/quantised_weight.h"
#include "tessera/parallel/data/flat_buffer.h"

namespace tessera::train {

/// Makes of `fill`, which knows the weights that `layers` had, one for the parts that they have now;
/// other parameters are filled as before. Each rank quantises what it has parts of: a layer is read
/// on LibTorch's threads, about a MiB each at a time (a Conv1D whole), so no weight is in memory
/// whole, and codes do not depend on the number of ranks. Memory: the parts of the layer last asked
/// for. `fill` is called by several threads.
parallel::FlatBuffer::Fill quantised(parallel::FlatBuffer::Fill fill,
                                     const std::vector<nn::QuantisedLayer>& layers);

/// The weights of `layers` as their codes say them, under the names that they had; others as `fill` has
/// them. Each layer is quantised once as long as it is asked for. Memory: the parts of the layer last
/// asked for (a Conv1D whole). For one thread.
parallel::FlatBuffer::Fill dequantised(parallel::FlatBuffer::Fill fill,
                                       const std::vector<nn::QuantisedLayer>& layers);

}  // namespace tessera::train
