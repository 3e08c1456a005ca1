// Products by a device's units of 8 bits beside their emulation. There is no such device here: LibTorch's operator for
// the CPU takes its place for what it can, and for the rest the operator written out (tests/support/scaled_mm.h), which
// refuses what a GPU would. Run again with the GPU's kernels on the host (tests/gpu).
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/kernels/fp8_codes.h"
#include "tessera/kernels/fp8_linear.h"
#include "tessera/kernels/testing.h"
#include "tests/support/scaled_mm.h"

namespace tessera::kernels {
namespace {

using tessera::testing::ScaledMmCall;
using tessera::testing::ScaledMmScope;

constexpr Matmul kRecipes[] = {Matmul::fp8_tensor,      Matmul::fp8_delayed, Matmul::fp8_row,
                               Matmul::fp8_row_wgrad16, Matmul::fp8_block,   Matmul::mxfp8};

/// NaN equals NaN.
bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::equal(a.isnan(), b.isnan()) &&
         at::equal(a.nan_to_num(), b.nan_to_num());
}

at::Tensor bytes_of(const at::Tensor& codes) { return codes.view(at::kByte); }

/// The codes' numbers, without what fills them up.
at::Tensor numbers_of(const Fp8Codes& codes, const Fp8Scaling& scaling, const at::Tensor& matrix) {
  const int64_t high = scaling.rows > 0 ? scaling.rows : codes.plain.size(0);
  const int64_t wide = scaling.columns > 0 ? scaling.columns : codes.plain.size(1);
  const auto factors = codes.factors.repeat_interleave(high, 0).repeat_interleave(wide, 1);
  return (codes.plain.to(at::kFloat) * factors)
      .narrow(0, 0, matrix.size(0))
      .narrow(1, 0, matrix.size(1));
}

/// Numbers of all sizes, zeros, and groups with an infinite one.
at::Tensor awkward(int64_t rows, int64_t columns) {
  at::manual_seed(3);
  auto matrix = at::randn({rows, columns}) * at::logspace(-12, 8, columns);
  matrix.slice(0, 32, 64).zero_();
  matrix[rows - 1][columns / 2] = INFINITY, matrix[0][1] = 1e-40;
  return matrix;
}

TEST(Fp8Codes, AreTheHostsNumbersInBothOrders) {
  auto finite = awkward(140, 270);
  finite[139][135] = 1;
  for (const auto& matrix : {awkward(140, 270), finite}) {
    for (const auto& x : {matrix, matrix.t(), matrix.to(at::kBFloat16), matrix.to(at::kHalf)}) {
      for (const auto& scaling : all_fp8_scalings()) {
        const auto host = round_to_fp8_reference(x, scaling, at::kFloat);
        const auto codes = fp8_codes(x, scaling, {.transposed = true, .multiple = 128});
        EXPECT_TRUE(are_alike(numbers_of(codes, scaling, x), host.values * host.factor));
        EXPECT_EQ(codes.amax.max().item<float>(), host.amax);
        EXPECT_TRUE(at::equal(bytes_of(codes.transposed), bytes_of(codes.plain.t().contiguous())));
        EXPECT_TRUE(codes.plain.t().is_contiguous() || codes.plain.is_contiguous());
        EXPECT_EQ(codes.plain.size(0) % 128 + codes.plain.size(1) % 128, 0);
        const auto plain = fp8_codes_reference(x, scaling, {.transposed = true, .multiple = 128});
        EXPECT_TRUE(are_alike(codes.plain.to(at::kFloat), plain.plain.to(at::kFloat)));
        EXPECT_TRUE(at::equal(codes.scales, plain.scales));
        EXPECT_TRUE(are_alike(codes.factors, plain.factors));
      }
    }
  }
}

TEST(Fp8Codes, AreMadeInTheOrdersAskedFor) {
  const auto x = at::randn({48, 80});
  const auto plain = fp8_codes(x, {}, {});
  EXPECT_TRUE(plain.plain.defined() && !plain.transposed.defined());
  const auto other = fp8_codes(x, {}, {.plain = false, .transposed = true});
  EXPECT_FALSE(other.plain.defined());
  EXPECT_TRUE(at::equal(bytes_of(other.transposed), bytes_of(plain.plain.t().contiguous())));
  const auto given = fp8_codes(x * 1000, {}, {.scale = 1.0f});
  EXPECT_EQ(given.plain.to(at::kFloat).abs().max().item<float>(), 448);
  EXPECT_EQ(given.factors.item<float>(), 1);
}

/// A layer's products, emulated or not.
struct TriedLayer {
  Fp8WatchPtr watch = std::make_shared<Fp8Watch>();
  LinearProductsPtr products;

  TriedLayer(Fp8Recipe recipe, bool by_device) {
    recipe.by_device = by_device;
    Fp8HistoryPtr history;
    if (recipe.matmul == Matmul::fp8_delayed) {
      history = std::make_shared<Fp8History>(recipe);
      history->finish_step(0, {20, 0.5f, 1e-3f});
    }
    watch->counts = true;
    products = fp8_products(recipe, watch, history);
  }
};

double distance_between(const at::Tensor& got, const at::Tensor& want) {
  const auto g = got.to(at::kDouble), w = want.to(at::kDouble);
  return ((g - w).norm() / w.norm().clamp_min(1e-300)).item<double>();
}

/// What rounding of the result explains.
double bound_of(Matmul matmul, at::ScalarType type) {
  const bool by_row = matmul == Matmul::fp8_row || matmul == Matmul::fp8_row_wgrad16;
  if (type == at::kBFloat16 || by_row) return 4e-3;
  return type == at::kHalf ? 6e-4 : 2e-6;
}

struct Sizes {
  int64_t rows, in, out;
};

void expect_products_of_emulation(const Fp8Recipe& recipe, const Sizes& size, at::ScalarType type,
                                  bool in_out) {
  SCOPED_TRACE(fmt::format("{} [{}, {}] x {} {}{}", text_of(recipe.matmul), size.out, size.in,
                           size.rows, at::toString(type), in_out ? " in_out" : ""));
  at::manual_seed(5);
  const auto x = (at::randn({size.rows, size.in}) * at::logspace(-2, 1, size.in)).to(type);
  const auto g = (at::randn({size.rows, size.out}) * at::logspace(-4, -2, size.out)).to(type);
  const auto stored = (at::randn({size.out, size.in}) * 0.1).to(type);
  const auto w = in_out ? stored.t().contiguous().t() : stored;
  const TriedLayer device(recipe, true), host(recipe, false);
  const double bound = bound_of(recipe.matmul, type);
  const auto same = [&](const at::Tensor& got, const at::Tensor& want) {
    EXPECT_EQ(got.scalar_type(), want.scalar_type());
    EXPECT_TRUE(got.is_contiguous());
    ASSERT_EQ(got.sizes(), want.sizes());
    EXPECT_LE(distance_between(got, want), bound);
  };
  same(device.products->forward(x, w), host.products->forward(x, w));
  same(device.products->input_gradient(g, w, /*trains=*/true),
       host.products->input_gradient(g, w, /*trains=*/true));
  const auto sink = (in_out ? at::ones_like(w.t()) : at::ones_like(w)).to(at::kFloat).contiguous();
  for (const bool again : {false, true}) {  // the second time it has to round what it reads
    SCOPED_TRACE(again);
    const auto wide = sink.clone(), expected = sink.clone();
    device.products->weight_gradient(wide, x, g, in_out, w.options());
    host.products->weight_gradient(expected, x, g, in_out, w.options());
    same(wide, expected);
    same(device.products->weight_gradient({}, x, g, in_out, w.options()),
         host.products->weight_gradient({}, x, g, in_out, w.options()));
  }
}

void expect_products_of_emulation(Matmul matmul) {
  for (const Sizes& size :
       {Sizes{70, 160, 96}, {128, 256, 384}, {1, 16, 16}, {33, 40, 72}, {5, 640, 24}}) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const bool in_out : {false, true}) {
        expect_products_of_emulation({.matmul = matmul}, size, type, in_out);
      }
    }
  }
  expect_products_of_emulation({.matmul = matmul, .format = Fp8Format::e4m3}, {70, 160, 96},
                               at::kFloat, false);
  expect_products_of_emulation({.matmul = matmul, .weights_are_fp8 = true}, {70, 160, 96},
                               at::kFloat, false);
}

TEST(Fp8Device, LibTorchsOperatorOfTheHostGivesTheProductsOfTheEmulation) {
  for (const auto matmul : {Matmul::fp8_tensor, Matmul::fp8_delayed}) {
    expect_products_of_emulation(matmul);
  }
}

TEST(Fp8Device, TheOperatorWrittenOutGivesTheProductsOfTheEmulation) {
  const ScaledMmScope scope;
  for (const auto matmul : kRecipes) expect_products_of_emulation(matmul);
}

/// Which operator, of which sizes: all are refused here in layouts that a Hopper refuses.
TEST(Fp8Device, OperatorsGetWhatAHopperTakes) {
  const ScaledMmScope scope;
  const auto calls_of = [](Matmul matmul) {
    ScaledMmScope::calls().clear();
    const TriedLayer layer({.matmul = matmul}, true);
    const auto x = at::randn({40, 72}).to(at::kBFloat16), w = at::randn({24, 72}).to(at::kBFloat16),
               g = at::randn({40, 24}).to(at::kBFloat16), sink = at::zeros({24, 72});
    layer.products->forward(x, w);
    layer.products->input_gradient(g, w, /*trains=*/true);
    layer.products->weight_gradient(sink, x, g, false, w.options());
    std::vector<std::string> calls;
    for (const auto& [scales, rows, depth, columns, result, fast] : ScaledMmScope::calls()) {
      calls.push_back(fmt::format("{} {}x{}x{} {}{}", scales, rows, depth, columns,
                                  at::toString(result), fast ? " fast" : ""));
    }
    return calls;
  };
  using Calls = std::vector<std::string>;
  const Calls by_tensor{"tensor 48x80x32 BFloat16 fast", "tensor 48x32x80 BFloat16",
                        "tensor 32x48x80 Float"};
  EXPECT_EQ(calls_of(Matmul::fp8_tensor), by_tensor);
  EXPECT_EQ(calls_of(Matmul::fp8_delayed), by_tensor);
  const Calls by_row{"row 48x80x32 BFloat16 fast", "row 48x32x80 BFloat16",
                     "row 32x48x80 BFloat16"};
  EXPECT_EQ(calls_of(Matmul::fp8_row), by_row);
  EXPECT_EQ(calls_of(Matmul::fp8_row_wgrad16), Calls(by_row.begin(), by_row.end() - 1));
  EXPECT_EQ(calls_of(Matmul::fp8_block),
            (Calls{"1x128 x 128x128 128x128x128 BFloat16", "1x128 x 128x128 128x128x128 BFloat16",
                   "1x128 x 1x128 128x128x128 Float"}));
  EXPECT_EQ(calls_of(Matmul::mxfp8),
            (Calls{"1x32 64x96x32 BFloat16", "1x32 64x32x96 BFloat16", "1x32 32x64x96 Float"}));
}

/// An infinite number has no scale: nothing that shares it is taken for a number. NaN stays.
TEST(Fp8Device, InfiniteOperandsGiveNaN) {
  const ScaledMmScope scope;
  for (const auto matmul : kRecipes) {
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      SCOPED_TRACE(fmt::format("{} {}", text_of(matmul), bad));
      const TriedLayer layer({.matmul = matmul}, true);
      const auto w = at::randn({32, 64});
      auto x = at::randn({48, 64}), g = at::randn({48, 32});
      x[5][6] = bad, g[7][8] = bad;
      const auto y = layer.products->forward(x, w);
      EXPECT_TRUE(y[5].isnan().all().item<bool>());
      const bool shared = matmul == Matmul::fp8_tensor || matmul == Matmul::fp8_delayed;
      EXPECT_EQ(y[6].isnan().any().item<bool>(), shared);
      EXPECT_TRUE(
          layer.products->input_gradient(g, w, /*trains=*/true)[7].isnan().all().item<bool>());
      const auto dw =
          layer.products->weight_gradient({}, at::ones({48, 64}), g, false, w.options());
      EXPECT_FALSE(dw[8].isfinite().any().item<bool>());
      collect({layer.watch});
      EXPECT_FALSE(std::isfinite(layer.watch->amax[0]) || std::isfinite(layer.watch->amax[2]));
      EXPECT_TRUE(std::isfinite(layer.watch->amax[1]));
    }
  }
}

TEST(Fp8Device, ZerosGiveZeros) {
  const ScaledMmScope scope;
  for (const auto matmul : kRecipes) {
    SCOPED_TRACE(text_of(matmul));
    const TriedLayer layer({.matmul = matmul}, true);
    const auto w = at::randn({32, 64}), zeros = at::zeros({48, 64}), g = at::zeros({48, 32});
    EXPECT_TRUE(at::equal(layer.products->forward(zeros, w), at::zeros({48, 32})));
    EXPECT_TRUE(at::equal(layer.products->forward(at::randn({48, 64}), at::zeros({32, 64})),
                          at::zeros({48, 32})));
    EXPECT_TRUE(at::equal(layer.products->input_gradient(g, w, /*trains=*/true), zeros));
    EXPECT_TRUE(at::equal(layer.products->weight_gradient({}, zeros, g, false, w.options()),
                          at::zeros({32, 64})));
  }
}

/// What a step sees of operands, over two micro-batches.
TEST(Fp8Device, SeesWhatTheEmulationSees) {
  const ScaledMmScope scope;
  for (const auto matmul : kRecipes) {
    SCOPED_TRACE(text_of(matmul));
    const TriedLayer device({.matmul = matmul}, true), host({.matmul = matmul}, false);
    const auto w = at::randn({32, 256});
    for (const float size : {1.0f, 30.0f}) {
      const auto x = at::randn({64, 256}) * at::logspace(-6, 1, 256) * size;
      const auto g = at::randn({64, 32}) * at::logspace(-9, -4, 32) * size;
      for (const auto* layer : {&device, &host}) {
        layer->products->forward(x, w);
        layer->products->input_gradient(g, w, /*trains=*/true);
        layer->products->weight_gradient({}, x, g, false, w.options());
      }
    }
    EXPECT_EQ(device.watch->amax, Fp8Amax{});  // the host has not asked yet
    collect({device.watch, host.watch});
    EXPECT_EQ(device.watch->amax, host.watch->amax);
    for (size_t i = 0; i < device.watch->losses.size(); ++i) {
      const auto &got = device.watch->losses[i], &want = host.watch->losses[i];
      EXPECT_EQ(std::tie(got.numbers, got.underflows, got.overflows, got.least_scale),
                std::tie(want.numbers, want.underflows, want.overflows, want.least_scale))
          << i;
    }
    EXPECT_FALSE(device.watch->on_device.defined());
  }
}

TEST(Fp8Device, RemembersNoGradientThatIsAnother) {
  const ScaledMmScope scope;
  const TriedLayer one({.matmul = Matmul::fp8_tensor}, true),
      other({.matmul = Matmul::fp8_tensor}, true);
  const auto x = at::randn({16, 16}), w = at::randn({16, 16}), g = at::randn({16, 16});
  const auto expected = one.products->weight_gradient({}, x, g, false, w.options());
  one.products->input_gradient(at::randn({16, 16}), w, /*trains=*/true);
  EXPECT_TRUE(at::equal(one.products->weight_gradient({}, x, g, false, w.options()), expected));
  other.products->input_gradient(g, w, /*trains=*/true);
  EXPECT_TRUE(at::equal(one.products->weight_gradient({}, x, g, false, w.options()), expected));
}

}  // namespace
}  // namespace tessera::kernels
