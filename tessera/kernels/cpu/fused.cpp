#include "tessera/kernels/cpu/fused.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>

#include "tessera/kernels/autocast.h"
#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/cpu/parallel.h"

namespace tessera::kernels {

bool can_fuse(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  if (first.scalar_type() != at::kFloat && first.scalar_type() != at::kBFloat16) return false;
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& x) {
    return !x.defined() || (x.device().is_cpu() && x.scalar_type() == first.scalar_type() &&
                            x.layout() == at::kStrided);
  });
}

namespace {

const FusedTables& tables() {
#if defined(__x86_64__)
  static constexpr const FusedTables* kTables[4] = {&generic::fused_tables, &avx2::fused_tables,
                                                    &avx512::fused_tables,
                                                    &avx512_bf16::fused_tables};
  return table_in_use(kTables);
#else
  return generic::fused_tables;
#endif
}

}  // namespace

const FusedTable& fused_table(at::ScalarType dtype) {
  return dtype == at::kFloat ? tables().float32 : tables().bfloat16;
}

const NormTable& norm_table(at::ScalarType x, at::ScalarType y) {
  return x == y ? fused_table(y).norms : tables().norms_to_bfloat16;
}

at::ScalarType norm_result(const at::Tensor& x) {
  return is_autocast(x) && at::autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16
             ? at::kBFloat16
             : x.scalar_type();
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

at::Tensor sum_of_rows(int64_t rows, int64_t dim,
                       const std::function<void(int64_t begin, int64_t end, float* sums)>& add) {
  const int64_t group_rows = std::max<int64_t>(32, (rows + 63) / 64);
  const int64_t groups = std::max<int64_t>(1, (rows + group_rows - 1) / group_rows);
  const auto partial = at::zeros({groups, dim}, at::kFloat);
  float* sums = partial.data_ptr<float>();
  parallel_for(0, groups, grain_of_rows(dim * group_rows), [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      add(group * group_rows, std::min(rows, (group + 1) * group_rows), sums + group * dim);
    }
  });
  for (int64_t group = 1; group < groups; ++group) {
    for (int64_t i = 0; i < dim; ++i) sums[i] += sums[group * dim + i];
  }
  return groups == 1 ? partial[0] : partial[0].clone();
}

at::Tensor sum_of_rows(const at::Tensor& x) {
  if (!can_fuse({x})) {
    return x.sum(0, /*keepdim=*/false, x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }
  const int64_t dim = x.size(1);
  const auto& table = fused_table(x.scalar_type());
  return sum_of_rows(x.size(0), dim, [&](int64_t begin, int64_t end, float* sums) {
    table.add_rows(x.const_data_ptr(), dim, begin, end, sums);
  });
}

int64_t grain_of_rows(int64_t elements_per_row) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements_per_row));
}

}  // namespace tessera::kernels
