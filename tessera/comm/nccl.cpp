#include "tessera/comm/nccl.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace tessera::comm {

bool built_with_cuda() { return true; }

int num_gpus() { return c10::cuda::device_count(); }

void select_gpu(int index) {
  // Memory of changing sizes, as of gathered units and of mixtures, is not cut into pieces then. Before anything is allocated.
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  if (!set("PYTORCH_ALLOC_CONF") && !set("PYTORCH_CUDA_ALLOC_CONF"))
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
}

GpuModel gpu_model(int index) {
  GpuModel model;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&model.major, cudaDevAttrComputeCapabilityMajor, index));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&model.minor, cudaDevAttrComputeCapabilityMinor, index));
  model.cuda = static_cast<int>(at::detail::getCUDAHooks().versionCUDART());
  return model;
}

std::string gpu_name(int index) {
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return properties.name;
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const std::string& name,
                                            const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout) {
  // 2, "clean up": the group stops with an error that we report, instead of LibTorch's default,
  // which ends the process. It can be set by this variable alone.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  // Beside products that fill the GPU its few blocks would wait for the end of one.
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, std::move(options));
  backend->setGroupUid(name);
  backend->setGroupDesc(name);
  return backend;
}

}  // namespace tessera::comm
