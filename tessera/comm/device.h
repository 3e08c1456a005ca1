// Which device a rank computes on, decided once.
#pragma once

#include <c10/core/Device.h>

#include <functional>
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
  bool is_bound =
      false;  ///< a scheduler gave each rank a GPU of its own, which is the one that it sees
};

/// Does Slurm say so? By SLURM_GPUS_PER_TASK, SLURM_NTASKS_PER_GPU or SLURM_GPU_BIND, where it started several tasks on a
/// machine: those are the ranks then. `variable`: as getenv.
bool bound_by_slurm(const std::function<const char*(const char*)>& variable);

struct DeviceChoice {
  c10::Device device = c10::kCPU;  ///< the CPU (Gloo), or the GPU with the local rank's number
  std::string note;                ///< why GPUs are left unused, or empty
};

/// With `nccl`, or bound, a rank that sees one GPU alone takes it, whatever its number: schedulers bind ranks
/// to GPUs. Throws UserError if NCCL is asked for where it cannot be.
DeviceChoice choose_device(const DeviceQuestion& question);

/// The same for this build and this process, and the GPU is made current.
DeviceChoice choose_device(BackendChoice backend, int local_rank, int local_world_size);

}  // namespace tessera::comm
