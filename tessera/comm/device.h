// Which device a rank computes on, decided once.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "tessera/base/choices.h"

namespace tessera::comm {

/// What a machine has to offer its ranks.
struct DeviceQuestion {
  BackendChoice backend = BackendChoice::automatic;
  int local_rank = 0;        ///< of this process on its machine
  int local_world_size = 1;  ///< ranks on this machine
  bool built_with_cuda = false;
  int num_gpus = 0;  ///< that this process sees
};

struct DeviceChoice {
  c10::Device device = c10::kCPU;  ///< the CPU (Gloo), or the GPU with the local rank's number
  std::string note;                ///< why GPUs are left unused, or empty
};

/// With `nccl`, a rank that sees one GPU alone takes it, whatever its number: schedulers bind ranks
/// to GPUs. Throws UserError if NCCL is asked for where it cannot be.
DeviceChoice choose_device(const DeviceQuestion& question);

/// The same for this build and this process, and the GPU is made current.
DeviceChoice choose_device(BackendChoice backend, int local_rank, int local_world_size);

}  // namespace tessera::comm
