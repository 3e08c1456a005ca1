// 8-bit floats beside LibTorch's types, and products of them beside torchao's (tests/fixtures/fp8) and
// the formulas of Transformer Engine, with each instruction set.
#include "tessera/kernels/fp8.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/fp8_linear.h"
#include "tessera/kernels/testing.h"

namespace tessera::kernels {
namespace {

at::Tensor from_torchao(const std::string& name) {
  const checkpoint::Safetensors stored("tests/fixtures/fp8/expected.safetensors");
  return checkpoint::read_tensor(stored, name);
}

at::Tensor bits_of(const at::Tensor& codes) { return codes.view(at::kByte); }

/// NaN equals NaN.
bool same_numbers(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::equal(a.isnan(), b.isnan()) &&
         at::equal(a.nan_to_num(), b.nan_to_num());
}

double relative_distance(const at::Tensor& got, const at::Tensor& want) {
  return ((got.to(at::kDouble) - want.to(at::kDouble)).norm() / want.to(at::kDouble).norm())
      .item<double>();
}

at::Tensor all_bfloat16() {
  return at::arange(1 << 16, at::kInt).to(at::kShort).view(at::kBFloat16);
}

/// Floats of every size: random bits, and the neighbourhood of each number of the type and of the
/// midpoints between them.
at::Tensor many_floats(Fp8Type type, int64_t count) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const auto random = at::randint(INT32_MIN, INT32_MAX, {count}, generator, at::kInt);
  const auto numbers = at::arange(256, at::kByte).view(dtype_of(type)).to(at::kFloat);
  const auto finite = std::get<0>(numbers.masked_select(numbers.isfinite()).sort());
  const auto middles = (finite.slice(0, 1) + finite.slice(0, 0, -1)) / 2;
  const auto exact = at::cat({finite, middles}).view(at::kInt);
  const auto special = at::tensor({0.0f, -0.0f, INFINITY, -INFINITY, NAN, 464.0f, 480.0f, 61440.0f,
                                   65536.0f, FLT_MAX, FLT_MIN, FLT_TRUE_MIN})
                           .view(at::kInt);
  return at::cat({random, exact, exact + 1, exact - 1, special}).view(at::kFloat);
}

class Fp8Test : public ::testing::TestWithParam<Isa> {
 protected:
  IsaScope scope_{GetParam()};
};

constexpr Fp8Type kTypes[] = {Fp8Type::e4m3, Fp8Type::e5m2};

TEST_P(Fp8Test, CodesAreThoseOfLibTorch) {
  const int64_t count = GetParam() == detected_isa() ? 10'000'000 : 500'000;
  for (const auto type : kTypes) {
    const double largest = largest_of(type);
    for (const auto& x : {all_bfloat16(), many_floats(type, count), all_bfloat16().to(at::kHalf)}) {
      const auto as_cast = x.to(dtype_of(type));
      const auto nan = x.isnan();  // whose sign and payload casts do not agree on
      const auto same = [&](const at::Tensor& ours, const at::Tensor& theirs) {
        return at::equal(bits_of(ours).masked_fill(nan, 0), bits_of(theirs).masked_fill(nan, 0)) &&
               ours.to(at::kFloat).masked_select(nan).isnan().all().item<bool>();
      };
      EXPECT_TRUE(same(to_fp8(x, type, 1, /*saturate=*/false), as_cast));
      EXPECT_TRUE(
          same(to_fp8(x, type), x.to(at::kFloat).clamp(-largest, largest).to(dtype_of(type))));
    }
  }
}

TEST_P(Fp8Test, NumbersOfAllCodesAreThoseOfLibTorch) {
  for (const auto type : kTypes) {
    const auto codes = at::arange(256, at::kByte).view(dtype_of(type));
    EXPECT_TRUE(same_numbers(from_fp8(codes, at::kFloat), codes.to(at::kFloat)));
    EXPECT_TRUE(same_numbers(from_fp8(codes, at::kBFloat16), codes.to(at::kBFloat16)));
    EXPECT_TRUE(same_numbers(from_fp8(codes.narrow(0, 3, 9), at::kFloat, 0.25f),
                             codes.narrow(0, 3, 9).to(at::kFloat) * 0.25f));
  }
}

TEST_P(Fp8Test, RoundedMatricesAreWhatLibTorchsOperatorsGive) {
  auto matrix = at::randn({140, 270}) * at::logspace(-8, 6, 270);
  matrix.slice(0, 32, 64).zero_();
  for (const auto& x : {matrix, matrix.t(), matrix.to(at::kBFloat16), matrix.to(at::kHalf)}) {
    for (const auto& scaling : all_fp8_scalings()) {
      for (const auto values : {at::kFloat, at::kBFloat16}) {
        const auto ours = round_to_fp8(x, scaling, values);
        const auto plain = round_to_fp8_reference(x, scaling, values);
        EXPECT_TRUE(same_numbers(ours.values, plain.values));
        EXPECT_TRUE(at::equal(ours.scales, plain.scales));
        EXPECT_TRUE(same_numbers(at::scalar_tensor(ours.factor), at::scalar_tensor(plain.factor)));
        EXPECT_EQ(ours.amax, plain.amax);
      }
    }
  }
}

TEST_P(Fp8Test, ScalesAndCodesAreThoseOfTorchao) {
  const auto check = [](const std::string& name, const Fp8Scaling& scaling) {
    SCOPED_TRACE(name);
    const auto x = from_torchao(name.substr(name.find('.') + 1));
    const auto ours = round_to_fp8(x, scaling, at::kFloat);
    EXPECT_TRUE(at::equal(ours.scales.flatten(), from_torchao(name + ".scales")));
    const auto theirs = from_torchao(name + ".codes").view(dtype_of(scaling.type)).to(at::kFloat);
    const bool exact = scaling.rule == Fp8ScaleRule::exact;
    EXPECT_TRUE(at::equal(exact ? ours.values : ours.values * ours.scales, theirs));
    if (exact) {
      const float scale = ours.scales.template item<float>();
      EXPECT_TRUE(
          at::equal(bits_of(to_fp8(x, scaling.type, scale)), from_torchao(name + ".codes")));
    }
  };
  check("tensor.x", {});
  check("tensor.w", {});
  check("tensor.g", {.type = Fp8Type::e5m2});
  check("row.x", {.rows = 1, .rule = Fp8ScaleRule::power_of_two});
  check("column.x", {.columns = 1, .rule = Fp8ScaleRule::power_of_two});
}

TEST_P(Fp8Test, LayersAreThoseOfTorchao) {
  const std::pair<std::string, Matmul> recipes[] = {
      {"tensorwise", Matmul::fp8_tensor},
      {"rowwise", Matmul::fp8_row},
      {"rowwise_with_gw_hp", Matmul::fp8_row_wgrad16}};
  for (const auto& [name, matmul] : recipes) {
    for (const bool in_out : {false, true}) {
      SCOPED_TRACE(name);
      const auto x = from_torchao("x").requires_grad_();
      const auto stored = from_torchao("w");
      const auto w = (in_out ? stored.t().contiguous() : stored.clone()).requires_grad_();
      const auto products = fp8_products({.matmul = matmul}, std::make_shared<Fp8Watch>());
      const auto y =
          in_out ? linear_in_out(x, w, {}, nullptr, products) : linear(x, w, {}, nullptr, products);
      y.backward(from_torchao("g"));
      EXPECT_LT(relative_distance(y.detach(), from_torchao(name + ".y")), 1e-6);
      EXPECT_LT(relative_distance(x.grad(), from_torchao(name + ".dx")), 1e-6);
      const auto dw = in_out ? w.grad().t() : w.grad();
      EXPECT_LT(relative_distance(dw, from_torchao(name + ".dw")), 1e-6);
    }
  }
}

/// The product of a plain layer of the rounded matrices: each recipe, with a kept gradient and without.
TEST_P(Fp8Test, ProductsAreThoseOfTheRoundedMatrices) {
  const auto x = at::randn({70, 160}) * at::logspace(-2, 1, 160), w = at::randn({96, 160}) * 0.1,
             g = at::randn({70, 96}) * at::logspace(-5, -3, 96);
  const auto number = [](const at::Tensor& m, Fp8Scaling scaling) {
    const auto rounded = round_to_fp8_reference(m, scaling, at::kFloat);
    return rounded.values * rounded.factor;
  };
  const Fp8Scaling block_1{.rows = 1, .columns = 128, .rule = Fp8ScaleRule::block},
      block{.rows = 128, .columns = 128, .rule = Fp8ScaleRule::block},
      mx{.rows = 1, .columns = 32, .rule = Fp8ScaleRule::e8m0};
  const std::tuple<Fp8Recipe, at::Tensor, at::Tensor, at::Tensor> expected[] = {
      {{.matmul = Matmul::fp8_tensor, .format = Fp8Format::e4m3},
       number(x, {}).matmul(number(w, {}).t()),
       number(g, {}).matmul(number(w, {})),
       number(g, {}).t().matmul(number(x, {}))},
      {{.matmul = Matmul::fp8_block},
       number(x, block_1).matmul(number(w, block).t()),
       number(g, block_1).matmul(number(w, block)),
       number(g, block_1.transposed()).t().matmul(number(x, block_1.transposed()))},
      {{.matmul = Matmul::mxfp8},
       number(x, mx).matmul(number(w, mx).t()),
       number(g, mx).matmul(number(w, mx.transposed())),
       number(g, mx.transposed()).t().matmul(number(x, mx.transposed()))}};
  for (const auto& [recipe, y, dx, dw] : expected) {
    SCOPED_TRACE(text_of(recipe.matmul));
    const auto products = fp8_products(recipe, std::make_shared<Fp8Watch>());
    EXPECT_LT(relative_distance(products->forward(x, w), y), 1e-6);
    EXPECT_LT(relative_distance(products->input_gradient(g, w, /*trains=*/true), dx), 1e-6);
    const auto sink = dw.clone();
    EXPECT_FALSE(products->weight_gradient(sink, x, g, false, w.options()).defined());
    EXPECT_LT(relative_distance(sink, dw * 2), 1e-6);
  }
}

TEST_P(Fp8Test, ResultsHaveTheTypeThatTheyAreReadIn) {
  const auto products = fp8_products({.matmul = Matmul::mxfp8}, std::make_shared<Fp8Watch>());
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto x = at::randn({40, 64}).to(dtype), w = at::randn({32, 64}).to(dtype);
    const auto y = products->forward(x, w);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_LT(relative_distance(y, products->forward(x.to(at::kFloat), w.to(at::kFloat))), 4e-3);
    const auto sink = at::zeros({32, 64}, dtype);
    products->weight_gradient(sink, x, y, false, sink.options());
    const auto wide = products->weight_gradient({}, x, y, false, sink.options().dtype(at::kFloat));
    EXPECT_LT(relative_distance(sink, wide), 4e-3);
  }
}

/// An expert without tokens, divided over ranks: they meet for its sum all the same.
TEST_P(Fp8Test, NoRowsGiveNone) {
  const auto over_ranks = std::make_shared<ProductOverRanks>();
  over_ranks->sum = [](const at::Tensor& summand) { return summand; };
  over_ranks->gradient = [](const at::Tensor& gradient) { return gradient; };
  for (const auto matmul : {Matmul::fp8_tensor, Matmul::fp8_row, Matmul::fp8_block}) {
    const auto products = fp8_products({.matmul = matmul}, std::make_shared<Fp8Watch>());
    const auto x = at::empty({0, 64}).requires_grad_(), w = at::randn({32, 64}).requires_grad_();
    const auto y = linear(x, w, {}, over_ranks, products);
    EXPECT_EQ(y.sizes(), (at::IntArrayRef{0, 32}));
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_TRUE(at::equal(w.grad(), at::zeros({32, 64})));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Fp8Test, ::testing::ValuesIn(usable_sets()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Fp8Scale, E8m0IsLibTorchsTypeRoundedUp) {
  for (const float amax : {448.0f, 449.0f, 1.0f, 0.3f, 1e-20f, 3e30f, 7.0f * 64, 1.75f}) {
    const float scale = fp8_scale(amax, Fp8Type::e4m3, Fp8ScaleRule::e8m0);
    const auto stored = at::tensor({1 / scale}).to(at::kFloat8_e8m0fnu);
    EXPECT_EQ(stored.to(at::kFloat).item<float>(), 1 / scale);
    EXPECT_LE(amax * scale, 448.0f);
    EXPECT_GT(amax * scale * 2, 448.0f);
  }
}

/// Transformer Engine's DelayedScaling as its documentation writes it: the amax of the history by
/// amax_compute_algo, scale = fp8_max / amax / 2^margin, kept where amax is zero or not finite.
TEST(Fp8History, ScalesFollowTransformerEnginesFormulas) {
  for (const auto algo : {AmaxOf::most_recent, AmaxOf::max}) {
    for (const auto format : {Fp8Format::hybrid, Fp8Format::e4m3}) {
      for (const int64_t length : {1, 4}) {
        const Fp8Recipe recipe{.matmul = Matmul::fp8_delayed,
                               .format = format,
                               .history = length,
                               .amax = algo,
                               .margin = 1,
                               .interval = 2};
        Fp8History history(recipe);
        std::deque<float> seen(static_cast<size_t>(length), 0.0f);
        float scale = 1;
        const float amaxes[] = {2, 0.5f, 0, 8, INFINITY, 1, 1, 1, 1, 0, 0, 3};
        for (int64_t step = 0; step < std::ssize(amaxes); ++step) {
          EXPECT_EQ(history.scale(Fp8Operand::gradient), scale) << step;
          history.finish_step(step, {0, 0, amaxes[step]});
          seen.push_front(amaxes[step]), seen.pop_back();
          const float amax = algo == AmaxOf::max ? *std::ranges::max_element(seen) : seen.front();
          const float fp8_max = format == Fp8Format::hybrid ? 57344 : 448;
          if (step % 2 == 0 && amax > 0 && std::isfinite(amax)) scale = fp8_max / amax / 2;
        }
        EXPECT_EQ(history.scale(Fp8Operand::input), 1);  // never seen
      }
    }
  }
}

TEST(Fp8History, ProductsUseItsScalesAndSaturate) {
  const auto history = std::make_shared<Fp8History>(Fp8Recipe{.matmul = Matmul::fp8_delayed});
  const auto watch = std::make_shared<Fp8Watch>();
  const auto products = fp8_products({.matmul = Matmul::fp8_delayed}, watch, history);
  const auto x = at::full({16, 16}, 1000.0f), w = at::eye(16);
  EXPECT_TRUE(at::equal(products->forward(x, w), at::full({16, 16}, 448.0f)));  // scale 1
  EXPECT_EQ(watch->amax, (Fp8Amax{1000, 1, 0}));
  history->finish_step(0, watch->amax);
  EXPECT_LT(relative_distance(products->forward(x, w), x), 1e-6);  // the largest is exact now
}

std::array<int64_t, 3> counts_of(const Fp8Losses& losses) {
  return {losses.numbers, losses.underflows, losses.overflows};
}

/// Of 16 x 16 numbers 3 are above 448 / scale, 2 (not zero) below what is rounded to zero.
TEST(Fp8Watch, LossesAreCountedWhereAnOperandIsReadFirst) {
  const auto history = std::make_shared<Fp8History>(Fp8Recipe{.matmul = Matmul::fp8_delayed});
  const auto watch = std::make_shared<Fp8Watch>();
  const auto products = fp8_products({.matmul = Matmul::fp8_delayed}, watch, history);
  auto x = at::ones({16, 16});
  x[3][4] = 500, x[3][5] = -1e9, x[7][0] = 449, x[8][1] = 448;
  x[2][2] = 0x1p-10, x[2][3] = -1e-20, x[2][4] = 0, x[2][5] = 0x1p-9;  // the least subnormal: 2^-9
  for (const auto& rows : {x, x.to(at::kBFloat16).to(at::kFloat).t()}) {
    *watch = {};
    products->forward(rows, at::eye(16));
    EXPECT_EQ(watch->losses[0].numbers, 0);  // it was not asked to count
    watch->counts = true;
    products->forward(rows, at::eye(16));
    EXPECT_EQ(counts_of(watch->losses[0]),
              (std::array<int64_t, 3>{256, 2, rows.is_same(x) ? 3 : 2}));
    EXPECT_EQ(counts_of(watch->losses[1]), (std::array<int64_t, 3>{256, 0, 0}));
    EXPECT_EQ(watch->losses[0].least_scale, 1);
    const auto once = watch->losses[0];
    products->weight_gradient({}, rows, at::ones({16, 16}), false, at::TensorOptions());
    EXPECT_EQ(counts_of(watch->losses[0]), counts_of(once));
    EXPECT_EQ(watch->losses[2].numbers, 0);
    products->input_gradient(at::ones({16, 16}), at::eye(16), /*trains=*/true);
    EXPECT_EQ(counts_of(watch->losses[2]), (std::array<int64_t, 3>{256, 0, 0}));
  }
}

/// What has an own scale never overflows, and its least scale is that of the largest numbers.
TEST(Fp8Watch, OwnScalesLoseSmallNumbersAlone) {
  for (const auto matmul :
       {Matmul::fp8_tensor, Matmul::fp8_row, Matmul::fp8_block, Matmul::mxfp8}) {
    const auto watch = std::make_shared<Fp8Watch>();
    watch->counts = true;
    const auto products = fp8_products({.matmul = matmul}, watch);
    const auto x = at::randn({64, 256}) * at::logspace(-6, 6, 64).unsqueeze(1);
    products->forward(x, at::randn({32, 256}));
    EXPECT_EQ(watch->losses[0].overflows, 0);
    EXPECT_EQ(watch->losses[0].underflows > 64 * 16, matmul == Matmul::fp8_tensor)
        << text_of(matmul);
    EXPECT_EQ(watch->amax[0], x.abs().max().item<float>());
    EXPECT_NEAR(watch->losses[0].least_scale * watch->amax[0], 336, 113) << text_of(matmul);
  }
}

/// An infinite number has no scale: nothing that shares it is taken for a number.
TEST(Fp8Watch, InfiniteOperandsGiveNaN) {
  for (const auto matmul : {Matmul::fp8_tensor, Matmul::fp8_delayed, Matmul::fp8_row,
                            Matmul::fp8_row_wgrad16, Matmul::fp8_block, Matmul::mxfp8}) {
    const auto watch = std::make_shared<Fp8Watch>();
    const Fp8Recipe recipe{.matmul = matmul};
    const auto history =
        matmul == Matmul::fp8_delayed ? std::make_shared<Fp8History>(recipe) : nullptr;
    const auto products = fp8_products(recipe, watch, history);
    const auto w = at::randn({32, 64});
    auto x = at::randn({32, 64}), g = at::randn({32, 32});
    x[5][6] = INFINITY, g[7][8] = -INFINITY;
    EXPECT_TRUE(products->forward(x, w)[5].isnan().all().item<bool>()) << text_of(matmul);
    EXPECT_TRUE(products->input_gradient(g, w, /*trains=*/true)[7].isnan().all().item<bool>())
        << text_of(matmul);
    EXPECT_TRUE(std::isinf(watch->amax[0]) && std::isinf(watch->amax[2])) << text_of(matmul);
    EXPECT_TRUE(std::isfinite(watch->amax[1]));
  }
}

}  // namespace
}  // namespace tessera::kernels
