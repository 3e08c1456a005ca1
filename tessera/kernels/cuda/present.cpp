#include <c10/cuda/CUDAStream.h>

#include "tessera/kernels/cuda/kernels.h"

namespace tessera::kernels {

const FusedKernels* cuda_kernels() { return &gpu::gpu_kernels(); }

namespace gpu {

Stream current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

}  // namespace gpu

}  // namespace tessera::kernels
