#include "tessera/kernels/quantised_linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "tessera/autograd/apply.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/autograd/held.h"
#include "tessera/autograd/recompute.h"
#include "tessera/kernels/autocast.h"
#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/cpu/parallel.h"
#include "tessera/kernels/cpu/quantised.h"
#include "tessera/kernels/fused.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kPanelStep = 64;  // columns of a panel are a multiple of it
constexpr int64_t kPanelsPerThread = 4;
constexpr int64_t kCodesPerTask = 1 << 16;  // worth a thread's start

/// rows [N, in] -> [N, out], for a few rows.
at::Tensor multiply_rows_by_codes(const at::Tensor& rows, const Quantised& weight) {
  const int64_t count = rows.size(0), in = weight.shape.in, out = weight.shape.out;
  const auto x = rows.to(at::kFloat).contiguous();
  const auto pairs = x.view({count, in / 2, 2});
  const bool four_bits = weight.shape.format != WeightFormat::int8;
  const auto even = four_bits ? pairs.select(2, 0).contiguous() : x;
  const auto odd = four_bits ? pairs.select(2, 1).contiguous() : x;
  const auto y = at::empty({count, out});
  parallel_for(0, out, std::max<int64_t>(1, kCodesPerTask / in), [&](int64_t begin, int64_t end) {
    constexpr int64_t kColumnsAtOnce = 256;  // whose absmax stay in the cache
    for (int64_t column = begin; column < end; column += kColumnsAtOnce) {
      const int64_t last = std::min(end, column + kColumnsAtOnce);
      ScaledCodes(weight, column, last)
          .multiply_few_rows({.even = even.const_data_ptr<float>(),
                              .odd = odd.const_data_ptr<float>(),
                              .out = y.mutable_data_ptr<float>(),
                              .rows = count,
                              .depth = in,
                              .columns = out,
                              .begin = column,
                              .end = last});
    }
  });
  return y.to(rows.scalar_type());
}

/// In what panels are made and multiplied: without instructions for 16 bits float32 is faster.
at::ScalarType type_of_product(const at::Tensor& rows) {
  const bool narrow = rows.scalar_type() == at::kBFloat16 && current_isa() >= Isa::avx512_bf16;
  return narrow ? at::kBFloat16 : at::kFloat;
}

/// Panels of a weight: of rows, or (`transposed`) of columns, `step` at a time.
struct Panels {
  const Quantised& weight;
  bool transposed;
  int64_t depth, columns, step;

  Panels(const Quantised& weight, bool transposed, int64_t element_size)
      : weight(weight),
        transposed(transposed),
        depth(transposed ? weight.shape.out : weight.shape.in),
        columns(transposed ? weight.shape.in : weight.shape.out) {
    // Measured: with smaller panels the products of float32 are slow, with larger ones of bfloat16.
    const int64_t bytes = element_size == 2 ? kPanelBytes / 4 : kPanelBytes;
    const int64_t fitting = bytes / (depth * element_size);
    const int64_t share = columns / (kPanelsPerThread * at::get_num_threads());
    step = std::max(kPanelStep, std::min(fitting, share) / kPanelStep * kPanelStep);
  }
  int64_t count() const { return (columns + step - 1) / step; }

  /// The panel that begins at `first`, in `space`.
  at::Tensor make(const ScaledCodes& codes, int64_t first, const at::Tensor& space) const {
    const int64_t width = std::min(step, columns - first);
    TileArgs tile{
        .depth = depth, .first = first, .last = first + width, .begin = 0, .count = depth};
    if (transposed) {
      tile = {.depth = columns, .first = 0, .last = depth, .begin = first, .count = width};
    }
    tile.out = space.mutable_data_ptr();
    codes.dequantise(tile, space.scalar_type() == at::kBFloat16);
    return space.narrow(0, 0, width * depth).view({tile.last - tile.first, tile.count});
  }
};

/// rows [N, in] W^T -> [N, out], or (`transposed`) rows [N, out] W -> [N, in]: a panel of rows or
/// columns of W at a time makes as many columns of the result, each once. A thread takes the next
/// panel when it is done with one, so that none waits long for a slower one.
at::Tensor multiply_panels(const at::Tensor& rows, const Quantised& weight, bool transposed) {
  const auto x = rows.detach().to(type_of_product(rows));
  const Panels panels(weight, transposed, x.element_size());
  const auto y = at::empty({x.size(0), panels.columns}, x.options());
  const ScaledCodes codes(weight, 0, weight.shape.out);
  std::atomic<int64_t> next = 0;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), panels.count());
  parallel_for(0, threads, 1, [&](int64_t /*begin*/, int64_t /*end*/) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto space = at::empty({panels.step * panels.depth}, x.options());
    for (int64_t i = next++; i < panels.count(); i = next++) {
      const auto panel = panels.make(codes, i * panels.step, space);
      auto result = y.narrow(1, i * panels.step, panel.size(transposed ? 1 : 0));
      multiply(result, x, transposed ? panel : panel.t(), /*accumulate=*/false);
    }
  });
  return y.to(rows.scalar_type());
}

struct QuantisedLinear : torch::autograd::Function<QuantisedLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Quantised& weight,
                            const std::optional<at::Tensor>& bias,
                            const ProductOverRanksPtr& over_ranks) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // The parts as saved tensors, whose memory may go and come back; the rest as it is.
    ctx->save_for_backward({weight.codes, weight.absmax, weight.nested_absmax, weight.nested_offset,
                            bias.value_or(at::Tensor())});
    autograd::hold(ctx, "weight",
                   Quantised{.shape = weight.shape, .absmax_stripe = weight.absmax_stripe});
    ctx->saved_data["x_sizes"] = x.sizes().vec();
    if (over_ranks) autograd::hold(ctx, "over_ranks", over_ranks);
    auto sizes = x.sizes().vec();
    sizes.back() = weight.shape.out;
    return autograd::compute_once(autograd::Operator::product, 1, [&]() -> variable_list {
      const auto rows = x.reshape({-1, x.size(-1)});
      auto y = at::_unsafe_view(quantised_product(rows, weight, /*transposed=*/false), sizes);
      if (over_ranks) y = over_ranks->sum(y);
      return {bias ? y.add_(bias->to(y.scalar_type())) : y};
    })[0];
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto& bias = saved[4];
    auto weight = *autograd::held<Quantised>(ctx, "weight");
    weight.codes = saved[0], weight.absmax = saved[1];
    weight.nested_absmax = saved[2], weight.nested_offset = saved[3];
    const auto bias_sink =
        autograd::gradient_sink(bias);  // outside the guard: .grad() is autograd's
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto as_rows = [](const at::Tensor& y) {
      return y.reshape({-1, y.size(-1)}).contiguous();
    };
    const auto* sum = autograd::held<ProductOverRanksPtr>(ctx, "over_ranks");
    variable_list out(4);
    const auto grad = as_rows(sum != nullptr ? (*sum)->gradient(grads[0]) : grads[0]);
    if (ctx->needs_input_grad(0)) {
      out[0] = at::_unsafe_view(quantised_product(grad, weight, /*transposed=*/true),
                                ctx->saved_data["x_sizes"].toIntVector());
    }
    if (bias.defined() && bias.requires_grad()) {
      out[2] = autograd::hand_over(bias_sink, sum_of_rows(as_rows(grads[0])), bias.scalar_type());
    }
    return out;
  }
};

}  // namespace

at::Tensor quantised_product(const at::Tensor& rows, const Quantised& weight, bool transposed) {
  if (!rows.device().is_cpu()) {
    const auto matrix = dequantise_reference(weight, rows.scalar_type());
    return at::mm(rows, transposed ? matrix : matrix.t());
  }
  const auto& shape = weight.shape;
  const int64_t group = shape.format == WeightFormat::int8 ? 32 : shape.block;
  const bool few = !transposed && rows.size(0) <= kQuantisedGemvRows && rows.size(0) > 0 &&
                   group % 32 == 0 && shape.in % group == 0;
  return few ? multiply_rows_by_codes(rows, weight) : multiply_panels(rows, weight, transposed);
}

at::Tensor quantised_linear(const at::Tensor& x, const Quantised& weight, const at::Tensor& bias,
                            const ProductOverRanksPtr& over_ranks) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) == weight.shape.in && x.is_floating_point(),
                    "quantised_linear: expected x [.., ", weight.shape.in, "] of floats, got ",
                    x.sizes(), " of ", x.scalar_type());
  const auto given = bias.defined() ? std::optional(bias) : std::nullopt;
  return autograd::apply<QuantisedLinear>(autocast(x), weight, given, over_ranks);
}

}  // namespace tessera::kernels
