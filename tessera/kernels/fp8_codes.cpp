#include "tessera/kernels/fp8_codes.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "tessera/kernels/fused.h"
#include "tessera/kernels/observed.h"

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

/// Codes to be made, in memory.
struct Target {
  Fp8Codes codes;
  Fp8Grid grid;
};

Target target_of(const at::Tensor& x, const Fp8Scaling& scaling, bool plain, bool transposed) {
  const auto [high, wide] = rectangle_of(x, scaling);
  const auto bytes = x.options().dtype(dtype_of(scaling.type));
  const auto grid = [&, high = high, wide = wide] {
    return at::empty({x.size(0) / high, x.size(1) / wide}, x.options().dtype(at::kFloat));
  };
  Fp8Codes codes{
      .plain = {}, .transposed = {}, .scales = grid(), .factors = grid(), .amax = grid()};
  if (plain) codes.plain = at::empty(x.sizes(), bytes);
  if (transposed) codes.transposed = at::empty({x.size(1), x.size(0)}, bytes);
  const Fp8Grid told{.high = high,
                     .wide = wide,
                     .amax = codes.amax.data_ptr<float>(),
                     .scales = codes.scales.data_ptr<float>(),
                     .factors = codes.factors.data_ptr<float>()};
  return {std::move(codes), told};
}

template <typename Pointed>
Pointed* data_of(const at::Tensor& made) {
  return made.defined() ? static_cast<Pointed*>(made.data_ptr()) : nullptr;
}

Fp8CastArgs arguments_of(const at::Tensor& x, const Fp8Scaling& scaling,
                         const Fp8CodesOptions& options, const Target& target) {
  return {.x = x.const_data_ptr(),
          .rows = x.size(0),
          .columns = x.size(1),
          .grid = target.grid,
          .grid_of_transposed = {},
          .rule = scaling.rule,
          .scale = nullptr,
          .plain = data_of<uint8_t>(target.codes.plain),
          .transposed = data_of<uint8_t>(target.codes.transposed),
          .lost = data_of<unsigned long long>(options.lost),
          .largest = data_of<float>(options.largest),
          .least = data_of<float>(options.least),
          .e5m2 = scaling.type == Fp8Type::e5m2,
          .type = element_of(x.scalar_type())};
}

/// Null: there is none.
const FusedKernels* kernels_for(const at::Tensor& matrix, const Fp8CodesOptions& options) {
  const auto* kernels = fused_kernels(matrix.device().type());
  if (kernels == nullptr || kernels->fp8_cast == nullptr) return nullptr;
  TORCH_INTERNAL_ASSERT(options.multiple % 16 == 0);
  return kernels;
}

using MakeCodes = Fp8Codes (*)(const at::Tensor&, const Fp8Scaling&, const Fp8CodesOptions&);

/// As codes of the transposed matrix.
Fp8Codes turned(Fp8Codes codes) {
  std::swap(codes.plain, codes.transposed);
  for (auto* grid : {&codes.scales, &codes.factors, &codes.amax}) *grid = grid->t();
  return codes;
}

/// Codes of a matrix whose transpose is contiguous.
Fp8Codes of_transpose(MakeCodes make, const at::Tensor& matrix, const Fp8Scaling& scaling,
                      Fp8CodesOptions options) {
  std::swap(options.plain, options.transposed);
  return turned(make(matrix.t(), scaling.transposed(), options));
}

void tell_seen(const Fp8Codes& codes, const Fp8CodesOptions& options) {
  auto largest = options.largest, least = options.least;
  if (largest.defined()) at::maximum_out(largest, largest, codes.amax.max());
  if (!least.defined()) return;
  const auto told =
      options.scale ? codes.scales : codes.scales.masked_fill(codes.amax == 0, INFINITY);
  at::minimum_out(least, least, told.min());
}

bool is_transpose(const at::Tensor& matrix) {
  return !matrix.is_contiguous() && matrix.t().is_contiguous();
}

}  // namespace

Fp8Codes fp8_codes(const at::Tensor& matrix, const Fp8Scaling& scaling,
                   const Fp8CodesOptions& options) {
  TORCH_INTERNAL_ASSERT(matrix.dim() == 2 && matrix.numel() > 0);
  if (is_transpose(matrix)) return of_transpose(fp8_codes, matrix, scaling, options);
  const auto* kernels = kernels_for(matrix, options);
  if (kernels == nullptr) return fp8_codes_reference(matrix, scaling, options);
  const auto x = padded(matrix, options.multiple);
  auto target = target_of(x, scaling, options.plain, options.transposed);
  auto args = arguments_of(x, scaling, options, target);
  if (options.scale) args.scale = &*options.scale;
  const Observed run("tessera::fp8_cast", {x, target.codes.plain, target.codes.transposed});
  kernels->fp8_cast(args);
  return std::move(target.codes);
}

Fp8CodesOfBoth fp8_codes_of_both(const at::Tensor& matrix, const Fp8Scaling& scaling,
                                 const Fp8CodesOptions& options) {
  TORCH_INTERNAL_ASSERT(matrix.dim() == 2 && matrix.numel() > 0 && scaling.rows == 1);
  const auto* kernels = kernels_for(matrix, options);
  if (kernels == nullptr || is_transpose(matrix)) {
    auto of_plain = options;
    of_plain.plain = true, of_plain.transposed = false, of_plain.scale.reset();
    return {fp8_codes(matrix, scaling, of_plain),
            fp8_codes(matrix, scaling.transposed(),
                      {.plain = false, .transposed = true, .multiple = options.multiple})};
  }
  const auto x = padded(matrix, options.multiple);
  auto plain = target_of(x, scaling, true, false);
  auto transposed = target_of(x, scaling.transposed(), false, true);
  auto args = arguments_of(x, scaling, options, plain);
  args.grid_of_transposed = transposed.grid;
  args.transposed = data_of<uint8_t>(transposed.codes.transposed);
  const Observed run("tessera::fp8_cast", {x, plain.codes.plain, transposed.codes.transposed});
  kernels->fp8_cast(args);
  return {std::move(plain.codes), std::move(transposed.codes)};
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
  tell_seen(codes, options);
  return codes;
}

}  // namespace tessera::kernels
