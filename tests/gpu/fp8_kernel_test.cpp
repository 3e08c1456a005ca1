// What the tests of products by 8-bit units, which this program runs with a GPU's kernels too, do not ask of the kernel
// that rounds.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tessera/kernels/fp8_codes.h"
#include "tessera/kernels/fp8_linear.h"
#include "tessera/kernels/testing.h"
#include "tests/gpu/gpu_under_test.h"
#include "tests/support/scaled_mm.h"

namespace tessera::kernels {
namespace {

at::Tensor stored_bytes(const at::Tensor& codes) { return codes.view(at::kByte); }

TEST(Fp8Kernel, MisalignedRowsAndEveryOrderOfThreads) {
  const auto x = at::randn({80, 272}) * at::logspace(-9, 3, 272);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto space = at::zeros({x.numel() + 4}, dtype);
    for (const int64_t offset : {0, 1, 4}) {
      const auto moved = space.narrow(0, offset, x.numel()).view(x.sizes()).copy_(x);
      const Fp8Scaling scaling{.rows = 0, .columns = 1, .rule = Fp8ScaleRule::power_of_two};
      const Fp8CodesOptions both{.transposed = true};
      const auto want = fp8_codes_reference(moved, scaling, both);
      for (const uint64_t order : {0, 1, 2}) {
        testing::set_order(order);
        const auto got = fp8_codes(moved, scaling, both);
        EXPECT_TRUE(at::equal(stored_bytes(got.plain), stored_bytes(want.plain)));
        EXPECT_TRUE(at::equal(stored_bytes(got.transposed), stored_bytes(want.transposed)));
        EXPECT_TRUE(at::equal(got.factors, want.factors));
      }
    }
  }
}

/// Every number that a code stands for, and the middles between, come to the codes of LibTorch.
TEST(Fp8Kernel, RoundsAsLibTorch) {
  for (const auto type : {Fp8Type::e4m3, Fp8Type::e5m2}) {
    const auto numbers = at::arange(256, at::kByte).view(dtype_of(type)).to(at::kFloat);
    const auto finite = std::get<0>(numbers.masked_select(numbers.isfinite()).sort());
    const auto middles = (finite.slice(0, 1) + finite.slice(0, 0, -1)) / 2;
    const auto exact = at::cat({finite, middles}).view(at::kInt);
    const auto near = at::cat({exact, exact + 1, exact - 1}).view(at::kFloat);
    const auto x = at::constant_pad_nd(near, {0, 16 * 64 * 2 - near.numel()}).view({16, 128});
    const float largest = largest_of(type);
    const auto codes = fp8_codes(x, {.type = type}, {.scale = 1.0f});
    EXPECT_TRUE(
        at::equal(codes.plain.to(at::kFloat).nan_to_num(-1),
                  x.clamp(-largest, largest).to(dtype_of(type)).to(at::kFloat).nan_to_num(-1)));
  }
}

/// What a step is told of codes.
struct Told {
  at::Tensor lost = at::zeros({2}, at::kLong), largest = at::full({}, 2.0f),
             least = at::full({}, 0.25f);

  Fp8CodesOptions options(bool plain, bool transposed) const {
    return {
        .plain = plain, .transposed = transposed, .lost = lost, .largest = largest, .least = least};
  }
};

/// NaN equals NaN.
void expect_alike(const at::Tensor& got, const at::Tensor& want) {
  EXPECT_TRUE(at::allclose(got.to(at::kFloat), want.to(at::kFloat), 0, 0, /*equal_nan=*/true));
}

void expect_same(const Fp8Codes& got, const Fp8Codes& want) {
  for (const auto part : {&Fp8Codes::plain, &Fp8Codes::transposed, &Fp8Codes::scales,
                          &Fp8Codes::factors, &Fp8Codes::amax}) {
    ASSERT_EQ((got.*part).defined(), (want.*part).defined());
    if ((got.*part).defined()) expect_alike(got.*part, want.*part);
  }
}

void expect_same(const Told& got, const Told& want) {
  // The reference counts zeros that NaN's scale made NaN as found.
  const bool counts = !want.largest.isnan().item<bool>();
  EXPECT_TRUE(!counts || at::equal(got.lost, want.lost));
  expect_alike(got.largest, want.largest);
  expect_alike(got.least, want.least);
}

/// Numbers of all sizes, some zeros, and what is no number or none of 8 bits.
std::vector<at::Tensor> awkward(int64_t rows, int64_t columns, at::ScalarType type) {
  std::vector<at::Tensor> made;
  for (const float bad : {1.0f, -INFINITY, NAN}) {
    auto x = at::randn({rows, columns}) * at::logspace(-9, 3, columns);
    x[rows / 2].zero_(), x.select(1, columns / 3).zero_();
    x[rows - 1][columns - 1] = bad;
    made.push_back(x.to(type));
  }
  made.push_back(at::zeros({rows, columns}, type));
  return made;
}

struct CastCase {
  int64_t rows, columns;
  at::ScalarType type;
};

bool divides(const Fp8Scaling& scaling, const CastCase& size) {
  return size.rows % std::max<int64_t>(scaling.rows, 1) == 0 &&
         size.columns % std::max<int64_t>(scaling.columns, 1) == 0;
}

TEST(Fp8Kernel, GivesAndTellsWhatTheReferenceDoes) {
  int orders = 0;
  for (const auto& size : {CastCase{16, 16, at::kHalf}, CastCase{144, 208, at::kBFloat16},
                           CastCase{272, 80, at::kFloat}, CastCase{256, 128, at::kBFloat16},
                           CastCase{16, 4112, at::kFloat}}) {
    for (const auto& x : awkward(size.rows, size.columns, size.type)) {
      for (const auto& scaling : all_fp8_scalings()) {
        if (!divides(scaling, size)) continue;
        orders = orders % 3 + 1;
        const Told got, want;
        const bool plain = (orders & 1) != 0, transposed = (orders & 2) != 0;
        expect_same(fp8_codes(x, scaling, got.options(plain, transposed)),
                    fp8_codes_reference(x, scaling, want.options(plain, transposed)));
        expect_same(got, want);
      }
    }
  }
}

TEST(Fp8Kernel, ScalesEachOrderAlongItsRows) {
  for (const auto& size : {CastCase{128, 128, at::kHalf}, CastCase{256, 384, at::kBFloat16},
                           CastCase{128, 256, at::kFloat}, CastCase{1200, 80, at::kBFloat16},
                           CastCase{144, 208, at::kFloat}}) {
    for (const auto& x : awkward(size.rows, size.columns, size.type)) {
      for (const auto& scaling : all_fp8_scalings()) {
        if (scaling.rows != 1 || !divides(scaling, size) || !divides(scaling.transposed(), size)) {
          continue;
        }
        const Told got, want;
        const auto both = fp8_codes_of_both(x, scaling, got.options(true, true));
        expect_same(both.plain, fp8_codes_reference(x, scaling, want.options(true, false)));
        expect_same(both.transposed, fp8_codes_reference(x, scaling.transposed(),
                                                         {.plain = false, .transposed = true}));
        expect_same(got, want);
      }
    }
  }
}

/// As a view and as the transpose of one; rows that a block's registers do not hold.
TEST(Fp8Kernel, TakesMatricesOfAnyLayout) {
  const Fp8Scaling by_row{.rows = 1, .rule = Fp8ScaleRule::power_of_two};
  const auto space = at::randn({16 * 32784 + 1}).to(at::kBFloat16);
  for (const int64_t columns : {32768, 32784}) {
    for (const int64_t offset : {0, 1}) {
      const auto x = space.narrow(0, offset, 16 * columns).view({16, columns});
      expect_same(fp8_codes(x, by_row, {}), fp8_codes_reference(x, by_row, {}));
    }
  }
  for (const int64_t offset : {0, 1}) {
    const auto x = space.narrow(0, offset, 144 * 208).view({144, 208}).t();
    for (const uint64_t order : {0, 1, 2}) {
      testing::set_order(order);
      const auto both = fp8_codes_of_both(x, by_row, {});
      expect_same(both.plain, fp8_codes_reference(x, by_row, {}));
      const auto own = fp8_codes_of_both(x.t(), by_row, {});
      expect_same(own.plain, fp8_codes_reference(x.t(), by_row, {}));
      expect_same(own.transposed, fp8_codes_reference(x.t(), by_row.transposed(),
                                                      {.plain = false, .transposed = true}));
    }
  }
}

/// A gradient is read for both of its products at once; where scales are of rows, one kernel does it all.
TEST(Fp8Kernel, LaunchesAsFewAsItCan) {
  if (!testing::launches()) GTEST_SKIP() << "a GPU does not count them";
  const testing::ScaledMmScope scope;
  const auto launches = [](Matmul matmul) {
    const auto products =
        fp8_products({.matmul = matmul, .by_device = true}, std::make_shared<Fp8Watch>());
    const auto x = at::randn({32, 64}), w = at::randn({48, 64}), g = at::randn({32, 48});
    const auto before = *testing::launches();
    products->forward(x, w);
    products->input_gradient(g, w, /*trains=*/true);
    products->weight_gradient({}, x, g, false, w.options());
    return *testing::launches() - before;
  };
  constexpr int kWithAmax = 4;  // zeros, the largest magnitudes, scales, codes
  EXPECT_EQ(launches(Matmul::fp8_tensor), 5 * kWithAmax);
  EXPECT_EQ(launches(Matmul::fp8_row), 2 + 3 * kWithAmax);
}

}  // namespace
}  // namespace tessera::kernels
