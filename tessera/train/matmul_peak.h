// What this machine can reach at most: the yardstick of model FLOPs utilisation (MFU).
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "tessera/train/assemble.h"

namespace tessera::train {

struct MatmulPeak {
  double flops = 0;  ///< floating-point operations per second
  std::string note;  ///< where that is from, such as "measured, fp32"
};

/// Floating-point operations per second of matrix products [1024 x 1024] x [1024 x 1024] (on a GPU
/// 8192) with the dtype and device of `options` in this process with its threads: the best of a few
/// runs, some 0.1 s. Ranks that share a machine should measure at the same time.
double matmul_peak(const torch::TensorOptions& options = {});

/// The peak of a GPU, by its driver's name, in bfloat16 and float16 without sparsity, as its maker publishes it; unset: not
/// known.
std::optional<double> published_peak(std::string_view gpu);

/// The peak of a rank of the run, for the way it computes: the published one for a GPU in 16 bits, else measured.
MatmulPeak matmul_peak(const Run& run);

}  // namespace tessera::train
