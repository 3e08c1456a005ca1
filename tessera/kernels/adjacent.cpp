#include "tessera/kernels/adjacent.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace tessera::kernels {
namespace {

/// Have all `parts` the memory, dtype and `size(dim)` of the first?
bool share_memory(at::TensorList parts, int64_t dim) {
  if (parts.size() < 2) return false;
  return std::ranges::all_of(parts, [&](const at::Tensor& part) {
    return part.defined() && parts[0].defined() && part.dim() == 2 && parts[0].dim() == 2 &&
           part.size(dim) == parts[0].size(dim) && part.scalar_type() == parts[0].scalar_type() &&
           part.has_storage() && part.is_alias_of(parts[0]);
  });
}

/// The elements from the first on as [rows, columns], if each part begins `step(part)` elements after
/// the one before it.
at::Tensor all_of(at::TensorList parts, int64_t rows, int64_t columns, auto step) {
  int64_t offset = parts[0].storage_offset();
  for (const auto& part : parts) {
    if (part.storage_offset() != offset) return {};
    offset += step(part);
  }
  return parts[0].as_strided({rows, columns}, {columns, 1}, parts[0].storage_offset());
}

}  // namespace

at::Tensor side_by_side(at::TensorList parts) {
  if (!share_memory(parts, 0)) return {};
  int64_t columns = 0;
  for (const auto& part : parts) columns += part.size(1);
  const bool rows_of_one = std::ranges::all_of(parts, [&](const at::Tensor& part) {
    return part.stride(0) == columns && part.stride(1) == 1;
  });
  if (!rows_of_one) return {};
  return all_of(parts, parts[0].size(0), columns,
                [](const at::Tensor& part) { return part.size(1); });
}

at::Tensor one_below_other(at::TensorList parts) {
  if (!share_memory(parts, 1)) return {};
  if (!std::ranges::all_of(parts, [](const auto& part) { return part.is_contiguous(); })) return {};
  int64_t rows = 0;
  for (const auto& part : parts) rows += part.size(0);
  return all_of(parts, rows, parts[0].size(1), [](const at::Tensor& part) { return part.numel(); });
}

}  // namespace tessera::kernels
