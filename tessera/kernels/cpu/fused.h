// Which tensors the vector code can take, and the table for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>

#include "tessera/kernels/cpu/fused_kernel.h"

namespace tessera::kernels {

/// Are all defined tensors on the CPU and of the same dtype, float32 or bfloat16?
bool can_fuse(std::initializer_list<at::Tensor> tensors);

/// The functions for `dtype` (float32 or bfloat16) on the instruction set in use.
const FusedTable& fused_table(at::ScalarType dtype);

/// The norms of `x` (float32 or bfloat16) with a result of `y`: x's dtype, or bfloat16 (autocast).
const NormTable& norm_table(at::ScalarType x, at::ScalarType y);

/// The dtype of a norm's result: what the next product takes, so that it need not cast.
at::ScalarType norm_result(const at::Tensor& x);

/// `x` [.., D] as rows of D contiguous elements that lie a constant stride apart; copied only if it
/// cannot be seen so.
struct RowView {
  at::Tensor tensor;
  int64_t rows, dim, stride;
};
RowView rows_of(const at::Tensor& x);

/// The sum over rows, float32 [dim]; `add` adds the rows [begin, end) to sums [dim]. The rows are
/// taken in groups that depend on their number alone: the same bits for any number of threads.
at::Tensor sum_of_rows(int64_t rows, int64_t dim,
                       const std::function<void(int64_t begin, int64_t end, float* sums)>& add);

/// x [N, D], contiguous, summed over N in float32 (float64 for float64).
at::Tensor sum_of_rows(const at::Tensor& x);

/// Rows per task, so that a task is worth a thread's start.
int64_t grain_of_rows(int64_t elements_per_row);

}  // namespace tessera::kernels
