// GPUs, and the NCCL backend of c10d. A build without CUDA has nccl_absent.cpp instead: no GPUs.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/gpu_model.h"

namespace tessera::comm {

bool built_with_cuda();
int num_gpus();  ///< that this process sees; 0 where there is no driver

/// Makes it this process's current GPU.
void select_gpu(int index);

GpuModel gpu_model(int index);

/// The driver's name for it, such as "NVIDIA H200".
std::string gpu_name(int index);

/// A group on the current GPUs of its ranks. Every rank uses a store with the same prefix; they
/// connect at the first collective. Once a peer is lost or an operation has run for `timeout`, a
/// thread of the backend ends what runs, and its getError() says so; tensors are undefined then.
/// `name` is for its log.
c10::intrusive_ptr<c10d::Backend> make_nccl(const std::string& name,
                                            const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout);

}  // namespace tessera::comm
