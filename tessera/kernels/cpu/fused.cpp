#include "tessera/kernels/cpu/fused.h"

#include <algorithm>

#include "tessera/kernels/cpu/isa.h"

namespace tessera::kernels {

bool can_fuse(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  if (first.scalar_type() != at::kFloat && first.scalar_type() != at::kBFloat16) return false;
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& x) {
    return !x.defined() || (x.device().is_cpu() && x.scalar_type() == first.scalar_type() &&
                            x.layout() == at::kStrided);
  });
}

const FusedTable& fused_table(at::ScalarType dtype) {
#if defined(__x86_64__)
  static constexpr const FusedTables* kTables[4] = {&generic::fused_tables, &avx2::fused_tables,
                                                    &avx512::fused_tables,
                                                    &avx512_bf16::fused_tables};
  const FusedTables& tables = table_in_use(kTables);
#else
  const FusedTables& tables = generic::fused_tables;
#endif
  return dtype == at::kFloat ? tables.float32 : tables.bfloat16;
}

RowView rows_of(const at::Tensor& x) {
  const int64_t dim = x.size(-1);
  const int64_t rows = dim == 0 ? 0 : x.numel() / dim;
  if (x.is_contiguous()) return {x, rows, dim, dim};
  bool regular = x.stride(-1) == 1 || dim == 1;
  const int64_t stride = x.dim() >= 2 ? x.stride(-2) : dim;
  for (int64_t axis = x.dim() - 3; regular && axis >= 0; --axis) {
    regular = x.size(axis) == 1 || x.stride(axis) == x.stride(axis + 1) * x.size(axis + 1);
  }
  if (!regular) return {x.contiguous(), rows, dim, dim};
  return {x, rows, dim, stride};
}

int64_t grain_of_rows(int64_t elements_per_row) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements_per_row));
}

}  // namespace tessera::kernels
