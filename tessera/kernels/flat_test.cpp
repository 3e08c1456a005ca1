#include "tessera/kernels/flat.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <tuple>
#include <utility>

#include "tessera/kernels/testing.h"

namespace tessera::kernels {
namespace {

class FlatTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { at::manual_seed(11); }
  IsaScope scope_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Sets, FlatTest, ::testing::ValuesIn(usable_sets()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

at::Tensor rounded(const at::Tensor& x, const StochasticRounding& rounding,
                   at::ScalarType to = at::kBFloat16) {
  auto y = at::empty(x.sizes(), to);
  round_stochastically(x, y, rounding);
  return y;
}

TEST_P(FlatTest, StochasticRoundingIsUnbiased) {
  // A quarter of the way from 1 to the next bfloat16, 1 + 2^-7: up in a quarter of 2^20 cases, give
  // or take five standard deviations.
  constexpr int64_t kCount = 1 << 20;
  const auto y = rounded(at::full({kCount}, 1 + 0x1p-9f), {.seed = 3, .step = 1}).to(at::kFloat);
  const auto up = (y == 1 + 0x1p-7f).sum().item<int64_t>();
  EXPECT_EQ(up + (y == 1).sum().item<int64_t>(), kCount);
  EXPECT_NEAR(static_cast<double>(up), kCount / 4.0, 5 * std::sqrt(kCount * 3.0 / 16));
  // Neighbours differ as often as independent draws do, and no draw is tied to the last step's.
  const auto bits = (y == 1).to(at::kDouble) - 0.75;
  const auto other = rounded(at::full({kCount}, 1 + 0x1p-9f), {.seed = 3, .step = 2});
  const auto next = (other == 1).to(at::kDouble) - 0.75;
  const double spread = 5 * std::sqrt(kCount) * 3 / 16;
  EXPECT_NEAR((bits.narrow(0, 0, kCount - 1) * bits.narrow(0, 1, kCount - 1)).sum().item<double>(),
              0, spread);
  EXPECT_NEAR((bits * next).sum().item<double>(), 0, spread);
}

TEST_P(FlatTest, StochasticRoundingKeepsWhatNeedsNone) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto x = at::tensor({0.f, -0.f, 1.f, -2.5f, kInfinity, -kInfinity, 0x1p-126f, 0x1p127f});
  EXPECT_TRUE(at::equal(rounded(x, {}).to(at::kFloat), x));
  EXPECT_TRUE(std::isnan(rounded(at::tensor({NAN}), {}).item<float>()));
}

/// A quarter of the way from numbers of a type to the next ones, `step` further.
void expect_unbiased(at::ScalarType to, std::initializer_list<std::pair<float, float>> cases) {
  constexpr int64_t kCount = 1 << 18;
  for (const auto& [low, step] : cases) {
    const auto y = rounded(at::full({kCount}, low + step / 4), {.seed = 3}, to).to(at::kFloat);
    const auto up = (y == low + step).sum().item<int64_t>();
    EXPECT_EQ(up + (y == low).sum().item<int64_t>(), kCount) << low;
    EXPECT_NEAR(static_cast<double>(up), kCount / 4.0, 5 * std::sqrt(kCount * 3.0 / 16)) << low;
  }
}

// Among normal numbers, at their smallest and among subnormal ones.
TEST_P(FlatTest, StochasticRoundingToFloat16IsUnbiased) {
  expect_unbiased(at::kHalf, {{1.0f, 0x1p-10f},
                              {-1536.0f, -1.0f},
                              {0x1p-14f, 0x1p-24f},
                              {0x3ffp-24f, 0x1p-24f},
                              {-0x3p-24f, -0x1p-24f},
                              {0.0f, 0x1p-24f}});
}

TEST_P(FlatTest, StochasticRoundingToFloat16KeepsAllThatItHolds) {
  const auto codes = at::arange(1 << 16, at::kInt).to(at::kShort).view(at::kHalf);
  for (int step = 0; step < 20; ++step) {
    const auto again = rounded(codes.to(at::kFloat), {.step = step}, at::kHalf);
    const auto same = again.view(at::kShort) == codes.view(at::kShort);
    EXPECT_TRUE((same | (codes.isnan() & again.isnan())).all().item<bool>());
  }
  EXPECT_EQ(rounded(at::tensor({1e6f}), {}, at::kHalf).item<float>(),
            std::numeric_limits<float>::infinity());
}

TEST_P(FlatTest, StochasticRoundingToE4M3IsUnbiased) {
  expect_unbiased(at::kFloat8_e4m3fn, {{1.0f, 0x1p-3f},
                                       {-416.0f, -32.0f},
                                       {0x1p-6f, 0x1p-9f},
                                       {0x7p-9f, 0x1p-9f},
                                       {-0x3p-9f, -0x1p-9f},
                                       {0.0f, 0x1p-9f}});
}

TEST_P(FlatTest, StochasticRoundingToE4M3KeepsAllThatItHolds) {
  const auto codes = at::arange(1 << 8, at::kInt).to(at::kByte);
  const auto numbers = codes.view(at::kFloat8_e4m3fn).to(at::kFloat);
  for (int step = 0; step < 20; ++step) {
    // Whole vectors, and what is left of one.
    for (const int64_t count : {256, 251}) {
      const auto own = numbers.slice(0, 0, count);
      const auto again = rounded(own, {.step = step}, at::kFloat8_e4m3fn);
      const auto same = again.view(at::kByte) == codes.slice(0, 0, count);
      EXPECT_TRUE((same | (own.isnan() & again.to(at::kFloat).isnan())).all().item<bool>());
    }
  }
  const auto beyond = rounded(at::tensor({449.f, -1e6f, INFINITY}), {}, at::kFloat8_e4m3fn);
  EXPECT_TRUE(at::equal(beyond.to(at::kFloat), at::tensor({448.f, -448.f, 448.f})));
}

TEST_P(FlatTest, StochasticRoundingIsTheSameHoweverTheBufferIsSplit) {
  // Across the place where the low 32 bits of the position start again.
  const int64_t first = (int64_t{1} << 32) - 40, count = 101;
  const auto x = at::randn({count});
  const auto whole = rounded(x, {.seed = 9, .step = 4, .first_position = first});
  for (const int64_t cut : {1, 15, 16, 39, 40, 41, 100}) {
    const auto left = rounded(x.narrow(0, 0, cut), {9, 4, first});
    const auto right = rounded(x.narrow(0, cut, count - cut).clone(), {9, 4, first + cut});
    EXPECT_TRUE(at::equal(whole, at::cat({left, right}))) << cut;
  }
  EXPECT_FALSE(at::equal(whole, rounded(x, {9, 4, first + (int64_t{1} << 32)})));
}

struct Update {
  at::Tensor parameter, gradient, exp_avg, exp_avg_sq, copy;
};

Update random_update(int64_t count, at::ScalarType p, at::ScalarType g, at::ScalarType s) {
  return {at::randn({count}).to(p), at::randn({count}).to(g), (at::randn({count}) * 0.1).to(s),
          (at::rand({count}) * 0.1).to(s), at::empty({count}, at::kBFloat16)};
}

const AdamWOptions kOptions = {
    .learning_rate = 1e-2, .beta2 = 0.95, .weight_decay = 0.1, .step = 3, .gradient_scale = 0.7};

double squares_of(const at::Tensor& x) { return sum_of_squares(x).item<double>(); }

/// The textbook in float64: {parameter, exp_avg, exp_avg_sq}.
std::tuple<at::Tensor, at::Tensor, at::Tensor> expected(const Update& u) {
  const auto& o = kOptions;
  const auto g = u.gradient.to(at::kDouble) * o.gradient_scale;
  const auto m = u.exp_avg.to(at::kDouble) * o.beta1 + (1 - o.beta1) * g;
  const auto v = u.exp_avg_sq.to(at::kDouble) * o.beta2 + (1 - o.beta2) * g * g;
  const auto root = (v / (1 - std::pow(o.beta2, 3))).sqrt() + o.eps;
  return {u.parameter.to(at::kDouble) * (1 - o.learning_rate * o.weight_decay) -
              o.learning_rate * m / (1 - std::pow(o.beta1, 3)) / root,
          m, v};
}

TEST_P(FlatTest, AdamWEqualsTheTextbookInEveryDtype) {
  for (const auto p : {at::kFloat, at::kBFloat16}) {
    for (const auto g : {at::kFloat, at::kBFloat16}) {
      for (const auto s : {at::kFloat, at::kBFloat16}) {
        for (const int64_t count : {1, 16, 37, 1000}) {
          const auto u = random_update(count, p, g, s);
          const auto [parameter, exp_avg, exp_avg_sq] = expected(u);
          adamw(u.parameter, u.gradient, u.exp_avg, u.exp_avg_sq, kOptions, u.copy);
          const auto close = [](const at::Tensor& got, const at::Tensor& want) {
            const double step = got.scalar_type() == at::kFloat ? 2e-7 : 4e-3;
            return at::allclose(got.to(at::kDouble), want, step, step * 0.1);
          };
          EXPECT_TRUE(close(u.parameter, parameter)) << p << g << s << count;
          EXPECT_TRUE(close(u.exp_avg, exp_avg)) << p << g << s << count;
          EXPECT_TRUE(close(u.exp_avg_sq, exp_avg_sq)) << p << g << s << count;
          EXPECT_TRUE(at::equal(u.copy, u.parameter.to(at::kBFloat16))) << p << g << s << count;
        }
      }
    }
  }
}

TEST_P(FlatTest, AdamWIsTheSameForAnySplitAndAnyNumberOfThreads) {
  constexpr int64_t kCount = 100'003, kCut = 33'333;
  auto options = kOptions;
  options.rounding = StochasticRounding{.seed = 1, .step = 3, .first_position = 1000};
  const auto start = random_update(kCount, at::kBFloat16, at::kFloat, at::kBFloat16);
  const auto run = [&](int threads, std::vector<int64_t> cuts) {
    at::set_num_threads(threads);
    const Update u = {start.parameter.clone(),
                      start.gradient,
                      start.exp_avg.clone(),
                      start.exp_avg_sq.clone(),
                      {}};
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto part = [&](const at::Tensor& x) {
        return x.narrow(0, cuts[i], cuts[i + 1] - cuts[i]);
      };
      auto here = options;
      here.rounding->first_position += cuts[i];
      adamw(part(u.parameter), part(u.gradient), part(u.exp_avg), part(u.exp_avg_sq), here);
    }
    at::set_num_threads(1);
    return at::cat({u.parameter, u.exp_avg, u.exp_avg_sq});
  };
  const auto whole = run(1, {0, kCount});
  EXPECT_TRUE(at::equal(whole, run(2, {0, kCount})));
  EXPECT_TRUE(at::equal(whole, run(1, {0, kCut, kCount})));
}

TEST_P(FlatTest, SumOfSquaresOfEveryDtype) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t count : {0, 1, 8, 4096, 10'003}) {
      const auto x = (at::randn({count}) * 0.01).to(dtype);
      const double exact = x.to(at::kDouble).square().sum().item<double>();
      EXPECT_NEAR(squares_of(x), exact, 1e-13 * exact) << dtype << count;
    }
    const auto bad = at::ones({20}, dtype);
    bad[17] = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isinf(squares_of(bad))) << dtype;
    bad[18] = NAN;
    EXPECT_TRUE(std::isnan(squares_of(bad))) << dtype;
  }
  const auto smallest = at::full({1}, 0x1p-24f).to(at::kHalf);  // subnormal in float16
  EXPECT_EQ(squares_of(smallest), 0x1p-48);
}

TEST(Flat, SumOfSquaresIsTheSameForEverySetAndNumberOfThreads) {
  at::manual_seed(1);
  const auto x = at::randn({1'000'003});
  const double once = squares_of(x);
  for (const auto set : usable_sets()) {
    const IsaScope scope(set);
    at::set_num_threads(2);
    EXPECT_EQ(squares_of(x), once) << name_of(set);
    at::set_num_threads(1);
    EXPECT_EQ(squares_of(x.to(at::kBFloat16)), squares_of(x.to(at::kBFloat16).to(at::kFloat)));
  }
}

}  // namespace
}  // namespace tessera::kernels
