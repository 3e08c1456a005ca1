#include "tessera/kernels/cuda/kernels.h"

namespace tessera::kernels {

const FusedKernels* cuda_kernels() { return nullptr; }

}  // namespace tessera::kernels
