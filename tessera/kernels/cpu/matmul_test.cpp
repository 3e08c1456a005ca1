// Products of every dtype and layout beside the same in float64, with each instruction set.
#include "tessera/kernels/cpu/matmul.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tessera/kernels/testing.h"
#include "tessera/report/clock.h"

namespace tessera::kernels {
namespace {

struct Size {
  int64_t rows, depth, columns;
};
// One number; odd ones; rows, depth and columns that need two blocks and a few more; a few rows.
const std::vector<Size> kSizes = {{1, 1, 1},
                                  {3, 5, 7},
                                  {65, 130, 33},
                                  {kWidenedBlock + 3, 9, 5},
                                  {4, 2 * kWidenedBlock + 1, 6},
                                  {2, 3, kWidenedBlock + 7},
                                  {kWidenedBlock + 1, kWidenedBlock + 2, kWidenedBlock + 3},
                                  {1, 515, 2051},
                                  {2, 16, 66},
                                  {37, 20, 5003},
                                  {4, 130, 1031},
                                  {5, 130, 31},
                                  {97, 300, 545},
                                  {545, 33, 64}};

class MultiplyTest : public ::testing::TestWithParam<Isa> {};

/// Within `step` times the exact result, or the product that was rounded before it was added to it,
/// and float32's error in a sum of `depth`.
void expect_near(const at::Tensor& actual, const at::Tensor& exact, const at::Tensor& product,
                 double step, int64_t depth) {
  const auto magnitude = std::sqrt(static_cast<double>(depth)) * 1e-6;
  const auto allowed = at::maximum(exact.abs(), product.abs()) * step + magnitude;
  EXPECT_TRUE((actual.to(at::kDouble) - exact).abs().le(allowed).all().item<bool>());
}

TEST_P(MultiplyTest, EqualsTheProductInFloat64) {
  const IsaScope scope(GetParam());
  const bool widened = GetParam() < Isa::avx512_bf16;
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    // Half the distance of neighbours; products that LibTorch rounds first, once more.
    const double rounding = dtype == at::kBFloat16 ? 1.0 / 256
                            : dtype == at::kHalf   ? 1.0 / 2048
                                                   : 0;
    for (const auto& [rows, depth, columns] : kSizes) {
      for (int variant = 0; variant < 16; ++variant) {
        SCOPED_TRACE(
            fmt::format("{} {}x{}x{} {}", at::toString(dtype), rows, depth, columns, variant));
        const bool wide = (variant & 1) != 0, accumulate = (variant & 2) != 0;
        if (wide && dtype == at::kFloat) continue;
        if (rows * depth * columns > 1 << 24 && variant % 5 != 0) continue;  // each bit both ways
        auto a = (at::randn({rows, depth}) / std::sqrt(depth)).to(dtype);
        auto b = at::randn({depth, columns}).to(dtype);
        if ((variant & 4) != 0) a = a.t().contiguous().t();
        if ((variant & 8) != 0) b = b.t().contiguous().t();
        const auto before = at::randn({rows, columns}).to(wide ? at::kFloat : dtype);
        const auto out = accumulate ? before.clone() : at::full_like(before, NAN);
        const float factor = variant % 3 == 1 ? 0.5f : 1;  // each of the other bits with both
        const auto product = at::mm(a.to(at::kDouble), b.to(at::kDouble)) * factor;
        const auto exact = accumulate ? product + before.to(at::kDouble) : product;
        multiply(out, a, b, accumulate, factor);
        const double step = widened || dtype == at::kHalf ? (wide ? 0 : rounding) : 4 * rounding;
        expect_near(out, exact, product, step + 1e-6, depth);
      }
    }
  }
}

// Columns of a larger matrix.
TEST_P(MultiplyTest, WritesRowsThatLieApart) {
  const IsaScope scope(GetParam());
  at::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t rows : {3, 64, 97}) {
      for (const int64_t depth : {40, 200}) {
        const auto a = at::randn({rows, depth}).to(dtype), b = at::randn({depth, 33}).to(dtype);
        const auto around = at::full({rows, 99}, 7, a.options());
        multiply(around.narrow(1, 33, 33), a, b, /*accumulate=*/false);
        const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
        const double step = dtype == at::kFloat ? 1e-6 : 1.0 / 256;
        expect_near(around.narrow(1, 33, 33), exact, exact, step, depth);
        EXPECT_TRUE(around.narrow(1, 0, 33).eq(7).all().item<bool>());
        EXPECT_TRUE(around.narrow(1, 66, 33).eq(7).all().item<bool>());
      }
    }
  }
}

// Of a larger tensor, as the first tokens of texts, a part of the columns, every second row, or one row for all.
TEST_P(MultiplyTest, ReadsFactorsThatLieApart) {
  const IsaScope scope(GetParam());
  at::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto all = at::randn({140, 3, 48}).to(dtype), wide = all.view({140, 144});
    const std::vector<at::Tensor> lefts = {all.select(1, 0), wide.narrow(1, 7, 48),
                                           wide.narrow(1, 48, 48).slice(0, 0, 140, 2),
                                           wide.narrow(1, 1, 48)[3].expand({70, 48})};
    const auto right = at::randn({48, 200}).to(dtype);
    for (const auto& b : {right.narrow(1, 9, 65), right.narrow(1, 3, 64).t().contiguous().t()}) {
      for (size_t i = 0; i < lefts.size(); ++i) {
        SCOPED_TRACE(fmt::format("{} {}", at::toString(dtype), i));
        const auto& a = lefts[i];
        const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
        const auto out = at::full({a.size(0), b.size(1)}, NAN, a.options());
        multiply(out, a, b, /*accumulate=*/false);
        expect_near(out, exact, exact, dtype == at::kFloat ? 1e-6 : 1.0 / 256, 48);
        const auto sum = sum_of_products({a, b}, {a.narrow(1, 3, 9), b.narrow(0, 3, 9)});
        const auto more =
            at::mm(a.narrow(1, 3, 9).to(at::kDouble), b.narrow(0, 3, 9).to(at::kDouble));
        expect_near(sum, exact + more, exact.abs() + more.abs(),
                    dtype == at::kFloat ? 1e-6 : 1.0 / 64, 48);
      }
    }
  }
}

/// Root of the mean square of the error, in units of what float32 rounds a result of the mean size by.
double product_error(const at::Tensor& a, const at::Tensor& b) {
  const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  const auto out = at::full({a.size(0), b.size(1)}, NAN);
  multiply(out, a, b, /*accumulate=*/false);
  return ((out.to(at::kDouble) - exact).square().mean().sqrt() / exact.square().mean().sqrt() *
          0x1p24)
      .item<double>();
}

// Six products of bfloat16 stand for one of float32.
TEST(Multiply, FloatsByTilesAreAsExactAsOthers) {
  if (detected_isa() < Isa::amx_bf16) GTEST_SKIP() << "this processor has no matrix unit";
  at::manual_seed(4);
  const auto with_sizes = [](const at::Tensor& x) {  // of 12 orders of magnitude
    return x * at::pow(10, at::randint(-6, 7, {x.size(0), 1}).to(at::kFloat));
  };
  for (const auto& [rows, depth, columns] :
       {Size{96, 64, 80}, Size{130, 515, 99}, Size{256, 4096, 64}, Size{64, 33, 32}}) {
    const auto normal_a = at::randn({rows, depth}), normal_b = at::randn({depth, columns});
    const std::vector<std::pair<at::Tensor, at::Tensor>> all = {
        {normal_a, normal_b},
        {normal_a.abs(), normal_b.abs()},  // nothing cancels
        {with_sizes(normal_a), normal_b},
        {normal_a, with_sizes(normal_b)},  // large ones beside small ones
        {at::softmax(normal_a * 3, 1), normal_b + 100},
        {normal_a * 1e-20, normal_b * 1e20},
        {normal_a.t().contiguous().t(), normal_b.t().contiguous().t()}};
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& [a, b] = all[i];
      SCOPED_TRACE(fmt::format("{}x{}x{} {}", rows, depth, columns, i));
      double other = 0;
      {
        const IsaScope scope(Isa::avx512_bf16);
        other = product_error(a, b);
      }
      const IsaScope scope(Isa::amx_bf16);
      const double error = product_error(a, b);
      EXPECT_LE(error, 1.25 * other) << "the library's " << other;
      EXPECT_GT(error, 0);
    }
  }
}

TEST(Multiply, FloatsByTilesSayWhatIsNotFinite) {
  if (detected_isa() < Isa::amx_bf16) GTEST_SKIP() << "this processor has no matrix unit";
  const IsaScope scope(Isa::amx_bf16);
  for (const float bad : {NAN, INFINITY, -INFINITY, 3.4e38F}) {
    auto a = at::ones({70, 64});
    const auto b = at::ones({64, 40}), out = at::zeros({70, 40});
    a[3][5] = bad;
    multiply(out, a, b, /*accumulate=*/false);
    EXPECT_FALSE(out[3].isfinite().any().item<bool>()) << bad;
    EXPECT_TRUE(out[2].eq(64).all().item<bool>() && out[4].eq(64).all().item<bool>()) << bad;
  }
}

// LibTorch keeps what it compiled for each: two thirds of a MiB.
TEST(Multiply, RowsThatAreOthersEachTimeLeaveNothingBehind) {
  if (!multiplies_bf16_into_float()) GTEST_SKIP() << "multiplied in float32 here";
  constexpr int64_t kFirst = 64, kLast = 320, kMostBytes = int64_t{32} << 20;
  const auto b = at::randn({64, 96}).to(at::kBFloat16),
             all = at::randn({kLast, 64}).to(at::kBFloat16);
  const auto out = at::empty({kLast, 96}, all.options());
  multiply(out, all, b, /*accumulate=*/false);
  const auto before = report::process_memory().current_bytes;
  for (int64_t rows = kFirst; rows < kLast; ++rows)
    multiply(out.narrow(0, 0, rows), all.narrow(0, 0, rows), b, /*accumulate=*/false);
  EXPECT_LT(report::process_memory().current_bytes - before, kMostBytes);
}

// Those of libraries do not promise it.
TEST(Multiply, ThreadsChangeNoBitOfProductsByTiles) {
  if (detected_isa() < Isa::amx_bf16) GTEST_SKIP() << "this processor has no matrix unit";
  const IsaScope scope(Isa::amx_bf16);
  at::manual_seed(2);
  const auto float_a = at::randn({203, 700}), float_b = at::randn({700, 1100});
  const int before = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int threads : {1, 2, 3, 8}) {
    at::set_num_threads(threads);
    for (const auto from : {at::kBFloat16, at::kFloat}) {
      const auto a = float_a.to(from), b = float_b.to(from);
      for (const auto to : {from, at::kFloat}) {
        results.push_back(at::full({203, 1100}, NAN, to));
        multiply(results.back(), a, b, /*accumulate=*/false);
      }
    }
  }
  at::set_num_threads(before);
  for (size_t i = 4; i < results.size(); ++i) EXPECT_TRUE(at::equal(results[i], results[i % 4]));
}

TEST_P(MultiplyTest, SumOfProductsAddsBoth) {
  const IsaScope scope(GetParam());
  at::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t more_depth : {0, 1, 16, 300}) {
      for (int variant = 0; variant < 8; ++variant) {
        const int64_t rows = (variant & 4) != 0 ? 70 : 7;
        const auto factor = [&](int64_t height, int64_t width, bool transposed) {
          const auto x = (at::randn({height, width}) * 0.1).to(dtype);
          return transposed ? x.t().contiguous().t() : x;
        };
        const auto a = factor(rows, 515, false), b = factor(515, 99, (variant & 1) != 0);
        Factors more;
        if (more_depth > 0) {
          more = {factor(rows, more_depth, false), factor(more_depth, 99, (variant & 2) != 0)};
        }
        const auto product = at::mm(a.to(at::kDouble), b.to(at::kDouble));
        auto added_product = at::zeros_like(product);
        if (more_depth > 0) added_product = at::mm(more.a.to(at::kDouble), more.b.to(at::kDouble));
        const auto sum = sum_of_products({a, b}, more);
        EXPECT_EQ(sum.scalar_type(), dtype);
        SCOPED_TRACE(fmt::format("{} {} {}", at::toString(dtype), more_depth, variant));
        // Each product may be rounded before they are added.
        expect_near(sum, product + added_product, product.abs() + added_product.abs(),
                    (dtype == at::kFloat ? 0 : 1.0 / 64) + 1e-6, 815);
      }
    }
  }
}

TEST_P(MultiplyTest, NothingToSumIsZero) {
  const IsaScope scope(GetParam());
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto out = at::full({2, 3}, NAN, dtype);
    multiply(out, at::empty({2, 0}, dtype), at::empty({0, 3}, dtype), /*accumulate=*/false);
    EXPECT_TRUE(at::equal(out, at::zeros_like(out)));
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, MultiplyTest, ::testing::ValuesIn(usable_sets()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tessera::kernels
