// Moments of 8 bits beside bitsandbytes' (tests/fixtures/optimizers) and beside LibTorch's operators.
#include "tessera/kernels/adamw8bit.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/base/file.h"

namespace tessera::kernels {
namespace {

const nlohmann::json& recorded() {
  static const auto kRecorded =
      nlohmann::json::parse(read_file("tests/fixtures/optimizers/adamw8bit.json"));
  return kRecorded;
}

at::Tensor numbers(const nlohmann::json& from, at::ScalarType dtype) {
  return at::tensor(from.get<std::vector<double>>(), at::kDouble).to(dtype);
}

/// The numbers of make.py.
at::Tensor spread(int64_t count, int seed) {
  const auto place = at::arange(count, at::kDouble);
  const auto sizes =
      at::exp2(-at::remainder(place * 7, 23)) * at::exp2(-at::floor_divide(place, 256));
  return (at::sin(place * (0.7 + 0.1 * seed) + seed) * sizes).to(at::kFloat);
}

TEST(BlockCodes, AreThoseOfBitsandbytes) {
  for (const auto& from : recorded()["codes"]) {
    const bool is_signed = from["map"] == "signed";
    const int64_t count = from["count"];
    SCOPED_TRACE(fmt::format("{} {}", from["map"].get<std::string>(), count));
    auto values = spread(count, 3);
    if (!is_signed) values = values.abs();
    if (count == 1000) values.slice(0, 256, 512).zero_();
    const auto made = block_codes(values, is_signed);
    EXPECT_TRUE(at::equal(made.codes, numbers(from["codes"], at::kByte)));
    EXPECT_TRUE(at::equal(made.absmax, numbers(from["absmax"], at::kFloat)));
    const auto error = (block_values(made, is_signed) - values).abs();
    const auto scales = made.absmax.repeat_interleave(256).narrow(0, 0, count);
    EXPECT_LT((error - 0.02 * scales).max().item<float>(), 1e-30);
  }
}

TEST(BlockCodes, OfNumbersWithoutAnInverse) {
  const auto tiny = at::full({300}, 1e-42);
  tiny.slice(0, 0, 10).zero_();
  const auto made = block_codes(tiny, /*is_signed=*/false);
  EXPECT_TRUE(at::equal(block_values(made, /*is_signed=*/false), tiny));
}

BlockCodes no_codes(int64_t count) {
  return {.codes = at::zeros({count}, at::kByte), .absmax = at::zeros({count / 256})};
}

AdamWOptions options_of_step(int64_t step) {
  return {.learning_rate = 0.01,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-8,
          .weight_decay = 0.1,
          .step = step};
}

// 4,224 numbers are no multiple of 256: others follow them, which change nothing of theirs.
TEST(AdamW8bit, TwentyStepsAreThoseOfBitsandbytes) {
  const int64_t count = 4224, padded = 4352;
  const auto parameter = at::zeros({padded}), gradient = at::zeros({padded});
  const auto mean = no_codes(padded), square = no_codes(padded);
  for (int64_t step = 1; step <= 20; ++step) {
    gradient.narrow(0, 0, count).copy_(spread(count, static_cast<int>(step)));
    adamw8bit(parameter, gradient, mean, square, options_of_step(step));
    const auto& then = recorded()["steps"][static_cast<size_t>(step - 1)];
    const auto sum = parameter.narrow(0, 0, count).sum(at::kDouble).item<double>();
    EXPECT_NEAR(sum, then["sum"].get<double>(), 1e-5) << step;
  }
  const auto expected = numbers(recorded()["parameter"], at::kFloat);
  EXPECT_LT((parameter.narrow(0, 0, count) - expected).abs().max().item<float>(), 1e-6);
  // LibTorch fuses some of the products and sums: a few codes are their neighbours.
  const std::pair<const BlockCodes*, const char*> moments[] = {{&mean, "1"}, {&square, "2"}};
  for (const auto& [ours, name] : moments) {
    const auto codes = numbers(recorded()[std::string("state") + name], at::kInt);
    const auto off = (ours->codes.narrow(0, 0, count).to(at::kInt) - codes).abs();
    EXPECT_LE(off.max().item<int>(), 1) << name;
    EXPECT_LE(off.sum().item<int64_t>(), 8) << name;
    const auto absmax = numbers(recorded()[std::string("absmax") + name], at::kFloat);
    EXPECT_TRUE(at::allclose(ours->absmax, absmax, 1e-5, 0)) << name;
  }
}

struct State {
  at::Tensor parameter;
  BlockCodes mean, square;
};

State after_steps(const at::Tensor& start, at::ScalarType gradient_dtype, int64_t begin,
                  int64_t end, bool reference, bool stochastic = false) {
  const auto count = end - begin;
  State state{.parameter = start.slice(0, begin, end).clone(),
              .mean = no_codes(count),
              .square = no_codes(count)};
  for (int64_t step = 1; step <= 5; ++step) {
    auto options = options_of_step(step);
    options.gradient_scale = 0.5;
    if (stochastic) options.rounding = {.seed = 3, .step = step, .first_position = 70 + begin};
    const auto gradient = spread(start.numel(), static_cast<int>(step)).to(gradient_dtype);
    (reference ? adamw8bit_reference : adamw8bit)(state.parameter, gradient.slice(0, begin, end),
                                                  state.mean, state.square, options, {});
  }
  return state;
}

TEST(AdamW8bit, EqualsThePlainVersion) {
  const int64_t count = 256 * 40;
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto gradient : {at::kFloat, at::kBFloat16}) {
      const auto start = at::randn({count}).to(dtype);
      const auto fused = after_steps(start, gradient, 0, count, /*reference=*/false);
      const auto plain = after_steps(start, gradient, 0, count, /*reference=*/true);
      const double allowed = dtype == at::kFloat ? 1e-6 : 4e-2;
      EXPECT_LT((fused.parameter - plain.parameter).abs().max().item<double>(), allowed);
      const auto off = (fused.mean.codes.to(at::kInt) - plain.mean.codes.to(at::kInt)).abs();
      EXPECT_LE(off.max().item<int>(), 1);
      EXPECT_LE(off.sum().item<int64_t>(), 10);
      EXPECT_TRUE(at::allclose(fused.square.absmax, plain.square.absmax, 1e-5, 0));
    }
  }
}

// Of neighbours in bfloat16 the plain version draws the same ones, but where a last bit of the unrounded value tips it.
TEST(AdamW8bit, ThePlainVersionRoundsAtRandomToo) {
  const int64_t count = 256 * 40;
  at::manual_seed(1);
  const auto start = at::randn({count}).to(at::kBFloat16);
  const auto fused = after_steps(start, at::kFloat, 0, count, /*reference=*/false, true);
  const auto plain = after_steps(start, at::kFloat, 0, count, /*reference=*/true, true);
  EXPECT_LT(fused.parameter.ne(plain.parameter).sum().item<int64_t>(), count / 100);
}

TEST(AdamW8bit, TheSameBitsHoweverASliceIsDividedByAnyNumberOfThreads) {
  const int64_t count = 256 * 100;
  at::manual_seed(1);
  for (const bool stochastic : {false, true}) {
    const auto start = at::randn({count}).to(at::kBFloat16);
    const auto steps = [&](int64_t begin, int64_t end) {
      return after_steps(start, at::kFloat, begin, end, /*reference=*/false, stochastic);
    };
    at::set_num_threads(1);
    const auto whole = steps(0, count);
    at::set_num_threads(3);
    const auto first = steps(0, 256 * 7), second = steps(256 * 7, count);
    at::set_num_threads(1);
    EXPECT_TRUE(at::equal(at::cat({first.parameter, second.parameter}), whole.parameter));
    EXPECT_TRUE(at::equal(at::cat({first.mean.codes, second.mean.codes}), whole.mean.codes));
    EXPECT_TRUE(
        at::equal(at::cat({first.square.absmax, second.square.absmax}), whole.square.absmax));
  }
}

}  // namespace
}  // namespace tessera::kernels
