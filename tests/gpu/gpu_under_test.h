// Whose kernels a program tests with tensors of the host: the simulator's (simt_under_test.cpp) or a GPU's that is there
// (cuda_under_test.cpp).
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/kernels/fused.h"

namespace tessera::testing {

/// Why nothing can be tested here; null: it can.
const char* no_gpu();

/// From now on tensors of the host lie where the kernels reach them.
void prepare_memory();

/// Each has done its work when it returns.
const kernels::FusedKernels& gpu_kernels();

/// How many kernels were started so far; unknown of a real GPU.
std::optional<int64_t> launches();

/// In which order the simulator runs threads; a GPU has its own.
void set_order(uint64_t order);

}  // namespace tessera::testing
