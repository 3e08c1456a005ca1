#include "tessera/kernels/fused.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <array>

#include "tessera/kernels/autocast.h"
#include "tessera/kernels/cpu/fused.h"
#include "tessera/kernels/cuda/kernels.h"
#include "tessera/kernels/observed.h"

namespace tessera::kernels {
namespace {

using Tables = std::array<const FusedKernels*, at::COMPILE_TIME_MAX_DEVICE_TYPES>;

Tables& tables() {
  static Tables tables = [] {
    Tables made{};
    made[static_cast<size_t>(at::kCPU)] = &cpu_kernels();
    made[static_cast<size_t>(at::kCUDA)] = cuda_kernels();
    return made;
  }();
  return tables;
}

}  // namespace

const FusedKernels* fused_kernels(at::DeviceType device) {
  return tables()[static_cast<size_t>(device)];
}

const FusedKernels& fused_kernels(const at::Tensor& x) {
  const auto* kernels = fused_kernels(x.device().type());
  TORCH_INTERNAL_ASSERT(kernels != nullptr, "no kernels for ", x.device());
  return *kernels;
}

FusedKernelsScope::FusedKernelsScope(at::DeviceType device, const FusedKernels* kernels)
    : device_(device), previous_(fused_kernels(device)) {
  tables()[static_cast<size_t>(device_)] = kernels;
}

FusedKernelsScope::~FusedKernelsScope() { tables()[static_cast<size_t>(device_)] = previous_; }

bool can_fuse(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  if (first.scalar_type() != at::kFloat && !at::isReducedFloatingType(first.scalar_type()))
    return false;
  if (fused_kernels(first.device().type()) == nullptr) return false;
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& x) {
    return !x.defined() || (x.device() == first.device() &&
                            x.scalar_type() == first.scalar_type() && x.layout() == at::kStrided);
  });
}

Element element_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Element::float32;
    case at::kBFloat16:
      return Element::bfloat16;
    case at::kHalf:
      return Element::float16;
    case at::kFloat8_e4m3fn:
      return Element::float8_e4m3;
    default:
      TORCH_INTERNAL_ASSERT(false, "no kernel takes ", dtype);
  }
}

at::ScalarType norm_result(const at::Tensor& x) {
  if (!is_autocast(x)) return x.scalar_type();
  const auto dtype = at::autocast::get_autocast_dtype(x.device().type());
  return at::isReducedFloatingType(dtype) ? dtype : x.scalar_type();
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

at::Tensor sum_of_rows(const at::Tensor& x) {
  if (!can_fuse({x})) {
    return x.sum(0, /*keepdim=*/false, x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }
  const Observed run("tessera::sum_of_rows", {x});
  return fused_kernels(x).sum_of_rows(x);
}

}  // namespace tessera::kernels
