// Weights of 4 and 8 bits beside bitsandbytes' (tests/fixtures/nf4) and beside LibTorch's operators, with
// each instruction set.
#include "tessera/kernels/quantised.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/kernels/quantised_linear.h"
#include "tessera/kernels/testing.h"
#include "tessera/nn/initialise.h"

namespace tessera::kernels {
namespace {

at::Tensor fixture(const std::string& name, const std::string& file = "expected") {
  const checkpoint::Safetensors stored("tests/fixtures/nf4/" + file + ".safetensors");
  return checkpoint::read_tensor(stored, name);
}

at::Tensor as_floats(const at::Tensor& bytes) { return bytes.flatten().view(at::kFloat); }

::testing::AssertionResult same(const at::Tensor& actual, const at::Tensor& expected) {
  const auto a = actual.flatten(), b = expected.flatten();
  if (a.sizes() != b.sizes()) return ::testing::AssertionFailure() << a.sizes() << b.sizes();
  const auto at = a.ne(b).nonzero();
  if (at.numel() == 0) return ::testing::AssertionSuccess();
  const auto first = at[0].item<int64_t>();
  return ::testing::AssertionFailure()
         << at.numel() << " differ, at " << first << ": " << a[first].item<double>()
         << " instead of " << b[first].item<double>();
}

constexpr WeightFormat kFormats[] = {WeightFormat::nf4, WeightFormat::nf4_double, WeightFormat::fp4,
                                     WeightFormat::int8};

class QuantisedTest : public ::testing::TestWithParam<Isa> {
 protected:
  IsaScope scope_{GetParam()};
};

TEST_P(QuantisedTest, CodesAndAbsmaxAreThoseOfBitsandbytes) {
  const auto weight = fixture("weight");
  for (const auto format : {WeightFormat::nf4, WeightFormat::fp4}) {
    for (const int64_t block : {64, 128}) {
      const auto name = fmt::format("{}_{}", text_of(format), block);
      SCOPED_TRACE(name);
      const auto ours = quantise(weight, format, block);
      EXPECT_TRUE(same(ours.codes, fixture(name + ".packed")));
      EXPECT_TRUE(same(as_floats(ours.absmax), fixture(name + ".absmax")));
      EXPECT_TRUE(same(dequantise(ours, at::kFloat), fixture(name + ".dequant")));
    }
  }
}

TEST_P(QuantisedTest, NestedStatesAreThoseOfBitsandbytes) {
  const Quantised stored{
      .shape = {.format = WeightFormat::nf4_double, .out = 256, .in = 128},
      .codes = fixture("double.packed").view({256, 64}),
      .absmax = fixture("double.absmax_u8").view({256, 2}),
      .nested_absmax = fixture("double.nested_absmax").view(at::kByte).view({2, 4}),
      .nested_offset = fixture("double.offset").view(at::kByte)};
  const auto values = dequantise(stored, at::kFloat);
  EXPECT_TRUE(same(values.narrow(0, 0, 8), fixture("double.dequant_rows_0_7")));
  EXPECT_TRUE(same(values, dequantise_reference(stored, at::kFloat)));
  // The weight of which these are, by its formula.
  const auto weight = at::empty({256, 128});
  nn::fill_portable(weight.view({-1}), "nf4.double", /*seed=*/0, /*std=*/1.0);
  weight.mul_(at::linspace(0.05, 2, 256).unsqueeze(1));
  const auto ours = quantise(weight, WeightFormat::nf4_double);
  EXPECT_TRUE(same(ours.codes, stored.codes));
  EXPECT_TRUE(same(ours.absmax, stored.absmax));
  EXPECT_TRUE(same(ours.nested_absmax, stored.nested_absmax));
  EXPECT_TRUE(same(ours.nested_offset, stored.nested_offset));
  EXPECT_TRUE(same(dynamic_map(true), fixture("double.nested_code")));
  EXPECT_TRUE(same(dynamic_map(true), fixture("dyn8.map")));
}

TEST_P(QuantisedTest, EveryShapeIsThatOfThePlainVersion) {
  at::manual_seed(2);
  for (const auto format : kFormats) {
    for (const auto& [out, in] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 5}, {7, 64}, {5, 192}, {300, 256}, {9, 100}, {17, 33}}) {
      SCOPED_TRACE(fmt::format("{} {}x{}", text_of(format), out, in));
      auto weight = at::randn({out, in});
      weight[0].zero_();
      const auto ours = quantise(weight, format);
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        EXPECT_TRUE(same(dequantise(ours, dtype), dequantise_reference(ours, dtype)));
      }
      const auto parts = quantised_parts(ours.shape);
      EXPECT_EQ(ours.codes.sizes(), at::IntArrayRef(parts[0].shape));
      EXPECT_EQ(ours.absmax.sizes(), at::IntArrayRef(parts[1].shape));
      // The error of a block is at most half of the largest gap between values.
      const double gap = format == WeightFormat::int8 ? 0.5 / 127 : 0.17;
      const auto error = (dequantise(ours, at::kFloat) - weight).abs().max().item<double>();
      EXPECT_LE(error, gap * weight.abs().max().item<double>() + 0.02);
    }
  }
}

TEST_P(QuantisedTest, ProductsAreThoseOfTheDequantisedWeight) {
  at::manual_seed(3);
  for (const auto format : kFormats) {
    for (const auto& [out, in] :
         std::vector<std::pair<int64_t, int64_t>>{{70, 128}, {5, 192}, {9, 100}, {300, 1024}}) {
      const auto ours = quantise(at::randn({out, in}), format);
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const auto plain = dequantise(ours, dtype);
        const double allowed = dtype == at::kFloat ? 1e-6 : 8e-3;
        for (const int64_t rows : {1, 2, 3, 4, 5, 40}) {
          SCOPED_TRACE(fmt::format("{} {}x{} of {} {}", text_of(format), out, in, rows,
                                   at::toString(dtype)));
          auto x = at::randn({rows, in}).to(dtype).requires_grad_();
          auto same = x.detach().clone().requires_grad_();
          auto bias = at::randn({out}).to(dtype).requires_grad_();
          auto same_bias = bias.detach().clone().requires_grad_();
          const auto y = quantised_linear(x, ours, bias);
          const auto expected = at::linear(same, plain, same_bias);
          const auto grad = at::randn({rows, out}).to(dtype);
          y.backward(grad);
          expected.backward(grad);
          const auto near = [&](const at::Tensor& a, const at::Tensor& b) {
            const double scale = b.abs().max().item<double>();
            EXPECT_LE((a - b).abs().max().item<double>(), allowed * scale);
          };
          near(y, expected);
          near(x.grad(), same.grad());
          near(bias.grad(), same_bias.grad());
        }
      }
    }
  }
}

TEST_P(QuantisedTest, ALinear4bitOfBitsandbytesGivesItsProduct) {
  const Quantised stored{
      .shape = {.format = WeightFormat::nf4, .out = 64, .in = 64},
      .codes = fixture("weight", "linear4bit").view({64, 32}),
      .absmax = fixture("weight.absmax", "linear4bit").view(at::kByte).view({64, 1, 4})};
  const auto y = quantised_linear(fixture("linear4bit.input"), stored);
  const auto expected = fixture("linear4bit.output");
  EXPECT_LE((y - expected).abs().max().item<double>(), 1e-6 * expected.abs().max().item<double>());
}

INSTANTIATE_TEST_SUITE_P(Sets, QuantisedTest, ::testing::ValuesIn(usable_sets()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tessera::kernels
