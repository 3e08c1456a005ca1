#include "tessera/kernels/cuda/kernels.h"

namespace tessera::kernels {

const FusedKernels* cuda_kernels() { return nullptr; }

const char* lock_pages(void*, size_t) { return "this build has no CUDA"; }

}  // namespace tessera::kernels
