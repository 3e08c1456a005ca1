// The fused operators on a GPU.
#pragma once

#include <cstddef>

#include "tessera/kernels/cuda/launch.h"
#include "tessera/kernels/fused.h"

namespace tessera::kernels {

/// Null in a build without CUDA (cuda/absent.cpp).
const FusedKernels* cuda_kernels();

/// Pins pages of the host's memory for all GPUs and for good. What the system says against it, or null.
const char* lock_pages(void* first, size_t bytes);

namespace TESSERA_GPU_NAMESPACE {

const FusedKernels& gpu_kernels();

/// The stream that LibTorch's operators of this thread run on.
Stream current_stream();

}  // namespace TESSERA_GPU_NAMESPACE

}  // namespace tessera::kernels
