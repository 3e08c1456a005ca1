// What this machine can reach at most: the yardstick of model FLOPs utilisation (MFU).
#pragma once

#include <torch/types.h>

#include "tessera/train/assemble.h"

namespace tessera::train {

/// Floating-point operations per second of matrix products [1024 x 1024] x [1024 x 1024] (on a GPU
/// 8192) with the dtype and device of `options` in this process with its threads: the best of a few
/// runs, some 0.1 s. Ranks that share a machine should measure at the same time.
double matmul_peak(const torch::TensorOptions& options = {});

/// The same of a rank of the run, as it computes.
double matmul_peak(const Run& run);

}  // namespace tessera::train
