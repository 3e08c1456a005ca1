#include "tessera/kernels/cuda/kernels.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {

Stream current_stream() { return nullptr; }

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
