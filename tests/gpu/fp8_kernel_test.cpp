// What the tests of products by 8-bit units, which this program runs with a GPU's kernels too, do not ask of the kernel
// that rounds.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "tessera/kernels/fp8_codes.h"
#include "tessera/kernels/fp8_linear.h"
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

/// A gradient with one scale is read once for its two products.
TEST(Fp8Kernel, LaunchesOneKernelForAnOperand) {
  if (!testing::launches()) GTEST_SKIP() << "a GPU does not count them";
  const testing::ScaledMmScope scope;
  const auto launches = [](Matmul matmul) {
    const auto products =
        fp8_products({.matmul = matmul, .by_device = true}, std::make_shared<Fp8Watch>());
    const auto x = at::randn({32, 64}), w = at::randn({48, 64}), g = at::randn({32, 48});
    const auto before = *testing::launches();
    products->forward(x, w);
    products->input_gradient(g, w);
    products->weight_gradient({}, x, g, false, w.options());
    return *testing::launches() - before;
  };
  EXPECT_EQ(launches(Matmul::fp8_tensor), 5);
  EXPECT_EQ(launches(Matmul::fp8_row), 6);
}

}  // namespace
}  // namespace tessera::kernels
