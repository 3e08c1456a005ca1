// Which tensors the vector code can take, and the table for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "tessera/kernels/cpu/fused_kernel.h"

namespace tessera::kernels {

/// Are all defined tensors on the CPU and of the same dtype, float32 or bfloat16?
bool can_fuse(std::initializer_list<at::Tensor> tensors);

/// The functions for `dtype` (float32 or bfloat16) on the instruction set in use.
const FusedTable& fused_table(at::ScalarType dtype);

/// `x` [.., D] as rows of D contiguous elements that lie a constant stride apart; copied only if it
/// cannot be seen so.
struct RowView {
  at::Tensor tensor;
  int64_t rows, dim, stride;
};
RowView rows_of(const at::Tensor& x);

/// Rows per task, so that a task is worth a thread's start.
int64_t grain_of_rows(int64_t elements_per_row);

}  // namespace tessera::kernels
