#include <c10/cuda/CUDAStream.h>

#include "tessera/kernels/cuda/kernels.h"

namespace tessera::kernels {

const FusedKernels* cuda_kernels() { return &gpu::gpu_kernels(); }

const char* lock_pages(void* first, size_t bytes) {
  const auto status = cudaHostRegister(first, bytes, cudaHostRegisterPortable);
  if (status == cudaSuccess) return nullptr;
  static_cast<void>(cudaGetLastError());  // or the next launch would report it
  return cudaGetErrorString(status);
}

namespace gpu {

Stream current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

}  // namespace gpu

}  // namespace tessera::kernels
