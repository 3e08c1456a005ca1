#include "tessera/kernels/fp8_codes.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "tessera/kernels/fused.h"

namespace tessera::kernels {
namespace {

int64_t rounded_up(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

at::Tensor padded(const at::Tensor& x, int64_t multiple) {
  const int64_t rows = rounded_up(x.size(0), multiple), columns = rounded_up(x.size(1), multiple);
  if (rows == x.size(0) && columns == x.size(1)) return x.contiguous();
  return at::constant_pad_nd(x, {0, columns - x.size(1), 0, rows - x.size(0)});
}

struct Rectangle {
  int64_t high, wide;
};

Rectangle rectangle_of(const at::Tensor& x, const Fp8Scaling& scaling) {
  return {scaling.rows > 0 ? scaling.rows : x.size(0),
          scaling.columns > 0 ? scaling.columns : x.size(1)};
}

/// float32 [R / high, C / wide].
at::Tensor amax_of(const at::Tensor& x, const Rectangle& each) {
  const int64_t down = x.size(0) / each.high, across = x.size(1) / each.wide;
  return at::linalg_vector_norm(x.view({down, each.high, across, each.wide}), INFINITY,
                                at::IntArrayRef{1, 3}, /*keepdim=*/false, at::kFloat);
}

/// By one kernel of the device.
Fp8Codes cast(const FusedKernels& kernels, const at::Tensor& x, const Fp8Scaling& scaling,
              const Fp8CodesOptions& options) {
  const auto each = rectangle_of(x, scaling);
  const auto bytes = x.options().dtype(dtype_of(scaling.type));
  Fp8Codes codes;
  codes.amax = amax_of(x, each).contiguous();
  codes.scales = at::empty_like(codes.amax), codes.factors = at::empty_like(codes.amax);
  if (options.plain) codes.plain = at::empty(x.sizes(), bytes);
  if (options.transposed) codes.transposed = at::empty({x.size(1), x.size(0)}, bytes);
  const auto data = [](const at::Tensor& made) {
    return made.defined() ? static_cast<uint8_t*>(made.data_ptr()) : nullptr;
  };
  kernels.fp8_cast({.x = x.const_data_ptr(),
                    .rows = x.size(0),
                    .columns = x.size(1),
                    .high = each.high,
                    .wide = each.wide,
                    .amax = codes.amax.const_data_ptr<float>(),
                    .rule = scaling.rule,
                    .scale = options.scale ? &*options.scale : nullptr,
                    .plain = data(codes.plain),
                    .transposed = data(codes.transposed),
                    .scales = codes.scales.data_ptr<float>(),
                    .factors = codes.factors.data_ptr<float>(),
                    .lost = options.lost.defined() ? reinterpret_cast<unsigned long long*>(
                                                         options.lost.data_ptr<int64_t>())
                                                   : nullptr,
                    .e5m2 = scaling.type == Fp8Type::e5m2,
                    .type = element_of(x.scalar_type())});
  return codes;
}

using MakeCodes = Fp8Codes (*)(const at::Tensor&, const Fp8Scaling&, const Fp8CodesOptions&);

/// Codes of a matrix whose transpose is contiguous.
Fp8Codes of_transpose(MakeCodes make, const at::Tensor& matrix, const Fp8Scaling& scaling,
                      Fp8CodesOptions options) {
  std::swap(options.plain, options.transposed);
  auto codes = make(matrix.t(), scaling.transposed(), options);
  std::swap(codes.plain, codes.transposed);
  for (auto* grid : {&codes.scales, &codes.factors, &codes.amax}) *grid = grid->t();
  return codes;
}

bool is_transpose(const at::Tensor& matrix) {
  return !matrix.is_contiguous() && matrix.t().is_contiguous();
}

}  // namespace

Fp8Codes fp8_codes(const at::Tensor& matrix, const Fp8Scaling& scaling,
                   const Fp8CodesOptions& options) {
  TORCH_INTERNAL_ASSERT(matrix.dim() == 2 && matrix.numel() > 0);
  if (is_transpose(matrix)) return of_transpose(fp8_codes, matrix, scaling, options);
  const auto* kernels = fused_kernels(matrix.device().type());
  if (kernels == nullptr || kernels->fp8_cast == nullptr) {
    return fp8_codes_reference(matrix, scaling, options);
  }
  TORCH_INTERNAL_ASSERT(options.multiple % 16 == 0);
  return cast(*kernels, padded(matrix, options.multiple), scaling, options);
}

Fp8Codes fp8_codes_reference(const at::Tensor& matrix, const Fp8Scaling& scaling,
                             const Fp8CodesOptions& options) {
  if (is_transpose(matrix)) return of_transpose(fp8_codes_reference, matrix, scaling, options);
  const auto x = padded(matrix, options.multiple);
  const auto each = rectangle_of(x, scaling);
  Fp8Codes codes{
      .plain = {}, .transposed = {}, .scales = {}, .factors = {}, .amax = amax_of(x, each)};
  const auto amax = codes.amax.cpu().contiguous();
  const auto [scales, inverses] = fp8_scales(amax, scaling, options.scale);
  codes.scales = scales.to(x.device()), codes.factors = inverses.to(x.device());
  const float largest = largest_of(scaling.type);
  const auto scale_of_each =
      codes.scales.repeat_interleave(each.high, 0).repeat_interleave(each.wide, 1);
  const auto made =
      (x.to(at::kFloat) * scale_of_each).clamp(-largest, largest).to(dtype_of(scaling.type));
  if (options.plain) codes.plain = made;
  if (options.transposed) codes.transposed = made.t().contiguous();
  if (options.lost.defined()) {
    const auto sizes = made.view(at::kByte).bitwise_and(0x7f);  // without signs
    options.lost[0].add_(at::count_nonzero(x) - at::count_nonzero(sizes));
    if (options.scale) {
      options.lost[1].add_(x.to(at::kFloat).abs().gt(largest / *options.scale).sum());
    }
  }
  return codes;
}

}  // namespace tessera::kernels
