// The fused operators on a GPU.
#pragma once

#include "tessera/kernels/cuda/launch.h"
#include "tessera/kernels/fused.h"

namespace tessera::kernels {

/// Null in a build without CUDA (cuda/absent.cpp).
const FusedKernels* cuda_kernels();

namespace TESSERA_GPU_NAMESPACE {

const FusedKernels& gpu_kernels();

/// The stream that LibTorch's operators of this thread run on.
Stream current_stream();

}  // namespace TESSERA_GPU_NAMESPACE

}  // namespace tessera::kernels
