// One of the things that an optimizer keeps of a parameter.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

namespace tessera::optim {

/// Torch's names: "exp_avg" and "exp_avg_sq" of adamw, "momentum_buffer" of sgd and muon, "exp_avg"
/// of lion; of adamw8bit "exp_avg_codes", "exp_avg_absmax" and the same of "exp_avg_sq"
/// (kernels/adamw8bit.h); of adamw in blocks "exp_avg_fp8", "exp_avg_factor", "exp_avg_sq_fp16",
/// "exp_avg_sq_factor".
struct StateKind {
  std::string name;
  torch::Dtype dtype = torch::kFloat32;
  int64_t block = 1;  ///< so many neighbouring numbers of the parameter share one

  int64_t count(int64_t numbers) const { return (numbers + block - 1) / block; }
  /// Bytes of the states of so many numbers.
  int64_t bytes(int64_t numbers) const {
    return count(numbers) * static_cast<int64_t>(torch::elementSize(dtype));
  }
  bool operator==(const StateKind&) const = default;
};

}  // namespace tessera::optim
