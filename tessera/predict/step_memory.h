// A rank's memory through one step of training: the moments between which the peak lies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/plan/run_plan.h"

namespace tessera::predict {

/// Bytes on the device at one moment, by purpose.
struct Moment {
  std::string phase;  ///< between steps, forward, loss, backward, optimizer step
  double parameters = 0, gathered = 0, gradients = 0, optimizer = 0;
  double activations = 0;  ///< with the batch, and what a running operator needs
  double logits = 0;       ///< a chunk of them, their gradient, and that of the last hidden state

  double total() const {
    return parameters + gathered + gradients + optimizer + activations + logits;
  }
};

struct StepMemory {
  std::vector<Moment> phases;  ///< of each phase the moment with the most
  double communication = 0;    ///< buffers beside the tensors
  double slack = 0;            ///< what the allocator may hold beyond the peak

  const Moment& peak() const;  ///< the phase with the most
  double device_bytes() const { return peak().total() + communication + slack; }
};

/// What computes.
struct Device {
  bool is_host = false;  ///< a CPU: offloading moves nothing
  /// Products of matrices of the type need blocks of them in float32 (kernels/cpu/matmul.h): CPUs
  /// without instructions for it.
  bool widens_bf16 = false, widens_fp16 = false;
};
Device this_cpu();

/// Predicted for a step after the first (the optimizer's state is there). docs/estimates.md has the formulas.
StepMemory step_memory(const config::RunConfig& config, const plan::RankPlan& rank,
                       const Device& device);

}  // namespace tessera::predict
