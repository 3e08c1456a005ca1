// The fused operators on the CPU: vector code for the instruction set in use, on LibTorch's
// threads.
#pragma once

#include "tessera/kernels/fused.h"

namespace tessera::kernels {

const FusedKernels& cpu_kernels();

/// Rows per task, so that a task is worth a thread's start.
int64_t grain_of_rows(int64_t elements_per_row);

/// Those of cpu_kernels() that work on flat buffers (cpu/flat.cpp).
void adamw_on_cpu(const AdamWArgs& args);
void round_on_cpu(const RoundArgs& args);
void drop_on_cpu(const DropArgs& args);
at::Tensor sum_of_squares_on_cpu(const at::Tensor& values);

}  // namespace tessera::kernels
