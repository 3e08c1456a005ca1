#include "tessera/kernels/attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>
#include <vector>

#include "tessera/kernels/testing.h"

namespace tessera::kernels {
namespace {

struct Shape {
  int64_t batch, queries, keys, heads, key_heads, dim;
  bool causal = true;
  std::optional<int64_t> window = {};
  std::optional<double> softcap = {};
  bool sinks = false;
};

std::ostream& operator<<(std::ostream& stream, const Shape& s) {
  return stream << "B" << s.batch << " T" << s.queries << " S" << s.keys << " H" << s.heads << " KV"
                << s.key_heads << " D" << s.dim << (s.causal ? " causal" : "") << " W"
                << s.window.value_or(0) << " C" << s.softcap.value_or(0)
                << (s.sinks ? " sinks" : "");
}

struct Inputs {
  at::Tensor q, k, v, grad_out;
  at::Tensor sinks = {};
};

Inputs inputs_of(const Shape& s, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(17);
  const auto make = [&](int64_t tokens, int64_t heads) {
    return at::randn({s.batch, tokens, heads, s.dim}).to(dtype);
  };
  Inputs in{make(s.queries, s.heads), make(s.keys, s.key_heads), make(s.keys, s.key_heads),
            make(s.queries, s.heads)};
  // Among the scores, far below and far above them.
  if (s.sinks) in.sinks = at::linspace(-20, 20, s.heads).to(dtype);
  return in;
}

using Attention = at::Tensor (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const AttentionOptions&, const at::Tensor& documents,
                                 const at::Tensor& sinks);

/// Output and gradients of q, k, v and sinks, all in float64.
std::vector<at::Tensor> results_of(Attention function, const Inputs& in, AttentionOptions options,
                                   at::ScalarType dtype) {
  std::vector<at::Tensor> leaves;
  for (const auto& x : {in.q, in.k, in.v, in.sinks}) {
    if (x.defined()) leaves.push_back(x.to(dtype).detach().requires_grad_(true));
  }
  const auto sinks = in.sinks.defined() ? leaves.back() : at::Tensor();
  const auto out = function(leaves[0], leaves[1], leaves[2], options, /*documents=*/{}, sinks);
  auto results = torch::autograd::grad({out}, leaves, {in.grad_out.to(dtype)});
  results.insert(results.begin(), out.detach());
  for (auto& x : results) x = x.to(at::kDouble);
  return results;
}

/// Largest difference over the largest value of `expected`, or over 1 where that is less (T = 1: a
/// gradient of zero).
double largest_error(const at::Tensor& actual, const at::Tensor& expected) {
  const double largest = expected.abs().max().item<double>();
  return (actual - expected).abs().max().item<double>() / std::max(largest, 1.0);
}

/// The kernel of every instruction set against the reference in float64.
void expect_equal_to_reference(const Shape& shape, at::ScalarType dtype, double forward_error,
                               double backward_error) {
  const auto in = inputs_of(shape, dtype);
  const AttentionOptions options{
      .causal = shape.causal, .window = shape.window, .softcap = shape.softcap};
  const auto expected = results_of(attention_reference, in, options, at::kDouble);
  const char* const names[] = {"out", "grad q", "grad k", "grad v", "grad sinks"};
  for (const Isa isa : usable_sets()) {
    const IsaScope scope(isa);
    const auto actual = results_of(attention, in, options, dtype);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(largest_error(actual[i], expected[i]), i == 0 ? forward_error : backward_error)
          << names[i] << ", " << name_of(isa) << ", " << shape;
    }
  }
}

const Shape kShapes[] = {
    {2, 128, 128, 4, 4, 64},      {1, 1, 1, 2, 2, 64},           {3, 5, 5, 2, 1, 16},
    {1, 64, 64, 8, 1, 32},        {2, 65, 65, 4, 2, 32},         {1, 127, 127, 2, 2, 80},
    {1, 200, 200, 2, 2, 128},     {3, 33, 33, 3, 3, 8},          {1, 70, 70, 2, 1, 20},
    {1, 66, 66, 2, 2, 1},         {1, 300, 300, 2, 1, 64},       {2, 1, 77, 4, 2, 64},
    {1, 7, 130, 2, 2, 32},        {1, 64, 67, 2, 2, 16},         {2, 100, 100, 4, 2, 48, false},
    {1, 130, 3, 2, 2, 64, false}, {1, 17, 129, 2, 1, 32, false}, {1, 90, 93, 2, 2, 144},
    {1, 75, 138, 4, 2, 40},       {1, 67, 65, 2, 1, 33, false},  {1, 129, 191, 3, 1, 64},
    {1, 1, 333, 24, 2, 20},       {1, 1, 50, 2, 2, 16, false},   {3, 1, 64, 9, 1, 8},
};

// Windows of one key, within a strip, within a tile, of whole tiles and a little more or less,
// longer than the sequence; queries fewer than keys.
const Shape kWindows[] = {
    {1, 70, 70, 2, 2, 16, true, 1},     {2, 200, 200, 4, 2, 32, true, 3},
    {1, 66, 66, 2, 1, 20, true, 8},     {1, 300, 300, 2, 1, 64, true, 17},
    {1, 129, 129, 3, 3, 33, true, 63},  {1, 300, 300, 2, 2, 64, true, 64},
    {1, 257, 257, 2, 1, 80, true, 65},  {1, 400, 400, 2, 1, 16, true, 130},
    {1, 191, 191, 2, 2, 64, true, 190}, {1, 128, 128, 2, 2, 32, true, 128},
    {1, 90, 90, 2, 2, 64, true, 1000},  {1, 7, 230, 2, 2, 32, true, 70},
    {2, 1, 77, 4, 2, 64, true, 5},      {1, 75, 338, 4, 2, 40, true, 100},
    {1, 129, 191, 3, 1, 64, true, 2},   {1, 200, 201, 2, 1, 1, true, 90},
};

// Caps that most scores are below, about and above.
const Shape kCaps[] = {
    {1, 70, 70, 2, 2, 16, true, {}, 20.0},  {2, 200, 200, 4, 2, 32, true, {}, 1.0},
    {1, 300, 300, 2, 1, 64, true, 17, 0.3}, {1, 130, 3, 2, 2, 64, false, {}, 2.0},
    {2, 1, 77, 4, 2, 64, true, 5, 1.0},
};

const Shape kSinks[] = {
    {1, 70, 70, 5, 5, 16, true, {}, {}, true},  {2, 200, 200, 4, 2, 32, true, 17, {}, true},
    {1, 7, 130, 4, 2, 32, true, 70, {}, true},  {1, 130, 3, 2, 2, 64, false, {}, {}, true},
    {2, 1, 77, 9, 3, 64, true, 5, {}, true},    {1, 1, 333, 24, 2, 20, true, {}, {}, true},
    {1, 66, 66, 3, 1, 80, true, {}, 1.0, true}, {1, 1, 1, 3, 3, 8, true, {}, {}, true},
};

class AttentionShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(AttentionShapes, Float32EqualsTheReference) {
  expect_equal_to_reference(GetParam(), at::kFloat, 2e-6, 4e-6);
}

TEST_P(AttentionShapes, Bfloat16EqualsTheReferenceWithinItsRounding) {
  expect_equal_to_reference(GetParam(), at::kBFloat16, 8e-3, 3e-2);
}

TEST_P(AttentionShapes, Float16EqualsTheReferenceWithinItsRounding) {
  expect_equal_to_reference(GetParam(), at::kHalf, 1e-3, 4e-3);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionShapes, ::testing::ValuesIn(kShapes));
INSTANTIATE_TEST_SUITE_P(Caps, AttentionShapes, ::testing::ValuesIn(kCaps));
INSTANTIATE_TEST_SUITE_P(Windows, AttentionShapes, ::testing::ValuesIn(kWindows));
INSTANTIATE_TEST_SUITE_P(Sinks, AttentionShapes, ::testing::ValuesIn(kSinks));

/// The reference against a mask written out: query t of T sees keys t + S - T - W + 1 .. t + S - T.
TEST(AttentionTest, AWindowHoldsTheQueryAndTheKeysBeforeIt) {
  const int64_t queries = 9, keys = 12, window = 4;
  const auto in = inputs_of({1, queries, keys, 1, 1, 8}, at::kDouble);
  auto visible = at::zeros({queries, keys}, at::kBool);
  for (int64_t t = 0; t < queries; ++t) {
    for (int64_t s = 0; s < keys; ++s) {
      const int64_t behind = t + keys - queries - s;
      visible[t][s] = behind >= 0 && behind < window;
    }
  }
  const auto expected = at::scaled_dot_product_attention(in.q.transpose(1, 2), in.k.transpose(1, 2),
                                                         in.v.transpose(1, 2), visible);
  const AttentionOptions options{.window = window};
  EXPECT_LT(largest_error(attention_reference(in.q, in.k, in.v, options).transpose(1, 2), expected),
            1e-12);
  EXPECT_LT(largest_error(attention(in.q, in.k, in.v, options).transpose(1, 2), expected), 1e-12);
}

/// The reference itself: scores are capped before their softmax.
TEST(Attention, TheReferenceCapsScores) {
  const auto in = inputs_of({1, 4, 4, 1, 1, 8, false});
  const auto scores = in.q[0].squeeze(1).matmul(in.k[0].squeeze(1).t()) / std::sqrt(8.0);
  const auto weights = (2 * (scores / 2).tanh()).softmax(-1);
  const auto out = attention_reference(in.q, in.k, in.v, {.causal = false, .softcap = 2});
  EXPECT_TRUE(out[0].squeeze(1).allclose(weights.matmul(in.v[0].squeeze(1)), 1e-5, 1e-6));
  EXPECT_THROW(attention(in.q, in.k, in.v, {.softcap = 0}), c10::ValueError);
}

/// The reference itself: a sink is a key more, whose value is 0.
TEST(Attention, TheReferenceHasASinkForEachHead) {
  const auto in = inputs_of({1, 3, 3, 2, 2, 8, false, {}, {}, true});
  const auto out =
      attention_reference(in.q, in.k, in.v, {.causal = false, .scale = 1}, {}, in.sinks);
  for (int64_t head = 0; head < 2; ++head) {
    const auto of_head = [&](const at::Tensor& x) { return x[0].select(1, head); };
    const auto scores = of_head(in.q).matmul(of_head(in.k).t());
    const auto sum = scores.exp().sum(1, true) + in.sinks[head].exp();
    EXPECT_TRUE(of_head(out).allclose((scores.exp() / sum).matmul(of_head(in.v)), 1e-5, 1e-6));
  }
  EXPECT_THROW(attention(in.q, in.k, in.v, {}, {}, at::zeros({3})), c10::ValueError);
}

/// A window that hides nothing gives the same bits as none.
TEST(AttentionTest, AWideWindowChangesNoBit) {
  const auto in = inputs_of({2, 150, 150, 4, 2, 32});
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto plain = results_of(attention, in, {}, dtype);
    const auto windowed = results_of(attention, in, {.window = 150}, dtype);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(plain[i].equal(windowed[i])) << i;
  }
}

TEST(AttentionTest, ReadsViewsIntoAFusedProductInPlace) {
  at::manual_seed(3);
  const int64_t heads = 4, key_heads = 2, dim = 32;
  const auto fused = at::randn({2, 70, (heads + 2 * key_heads) * dim});
  const auto part = [&](int64_t first, int64_t count) {
    return fused.narrow(2, first * dim, count * dim).unflatten(2, {count, dim});
  };
  const Inputs views{part(0, heads), part(heads, key_heads), part(heads + key_heads, key_heads),
                     at::ones({1}).expand({2, 70, heads, dim})};
  const auto actual = results_of(attention, views, {}, at::kFloat);
  const auto expected = results_of(attention_reference, views, {}, at::kDouble);
  for (int i = 0; i < 4; ++i) EXPECT_LT(largest_error(actual[i], expected[i]), 4e-6) << i;

  // Heads before tokens in memory, and a last dimension that is not contiguous.
  const auto turned = at::randn({2, heads, 70, dim}).transpose(1, 2);
  const auto across = at::randn({2, 70, dim, heads}).transpose(2, 3);
  EXPECT_LT(
      largest_error(attention(turned, across, across), attention_reference(turned, across, across)),
      4e-6);
}

TEST(AttentionTest, ScaleIsUsed) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto in = inputs_of({1, 70, 70, 2, 2, 16}, dtype);
    for (const double scale : {0.7, 0.0, -0.3}) {
      const AttentionOptions options{.scale = scale};
      const auto expected = results_of(attention_reference, in, options, at::kDouble);
      for (const Isa isa : usable_sets()) {
        const IsaScope scope(isa);
        const auto actual = results_of(attention, in, options, dtype);
        for (int i = 0; i < 4; ++i) {
          EXPECT_LT(largest_error(actual[i], expected[i]), dtype == at::kFloat ? 4e-6 : 2e-2)
              << i << ", " << dtype << ", scale " << scale << ", " << name_of(isa);
        }
      }
    }
  }
}

/// The root of the mean square error over that of `expected`.
double mean_error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual - expected).norm() / expected.norm()).item<double>();
}

at::Tensor attention_of_libtorch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionOptions& options, const at::Tensor&,
                                 const at::Tensor&) {
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          {}, 0.0, options.causal, options.scale)
      .transpose(1, 2);
}

TEST(AttentionTest, Bfloat16IsAsExactAsLibTorchsKernel) {
  for (const Shape& shape : {Shape{1, 512, 512, 2, 2, 64}, Shape{2, 300, 300, 2, 2, 32, false}}) {
    const auto in = inputs_of(shape, at::kBFloat16);
    const AttentionOptions options{.causal = shape.causal};
    const auto expected = results_of(attention_reference, in, options, at::kDouble);
    const auto theirs = results_of(attention_of_libtorch, in, options, at::kBFloat16);
    for (const Isa isa : usable_sets()) {
      const IsaScope scope(isa);
      const auto ours = results_of(attention, in, options, at::kBFloat16);
      for (int i = 0; i < 4; ++i) {
        EXPECT_LT(mean_error(ours[i], expected[i]), 1.02 * mean_error(theirs[i], expected[i]))
            << i << ", " << name_of(isa) << ", " << shape;
      }
    }
  }
}

/// Scores that rise from block to block: the sums are rescaled, and by small and large factors.
TEST(AttentionTest, RisingScoresRescaleTheSums) {
  for (const double rise : {0.01, 0.05, 0.5}) {
    auto in = inputs_of({1, 260, 260, 1, 1, 16});
    in.q = in.q.abs() * 0.1 + 1;
    in.k += at::arange(260, at::kFloat).view({1, 260, 1, 1}) * rise;
    const auto expected = results_of(attention_reference, in, {}, at::kDouble);
    for (const Isa isa : usable_sets()) {
      const IsaScope scope(isa);
      const auto actual = results_of(attention, in, {}, at::kFloat);
      for (int i = 0; i < 4; ++i) {
        EXPECT_LT(largest_error(actual[i], expected[i]), 1e-4)
            << i << ", rise " << rise << ", " << name_of(isa);
      }
    }
  }
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  auto in = inputs_of({1, 130, 130, 2, 2, 64});
  in.q *= 60;
  const auto actual = results_of(attention, in, {}, at::kFloat);
  const auto expected = results_of(attention_reference, in, {}, at::kDouble);
  for (int i = 0; i < 4; ++i) EXPECT_LT(largest_error(actual[i], expected[i]), 2e-4) << i;
}

TEST(AttentionTest, NotANumberReachesTheOutput) {
  for (const Isa isa : usable_sets()) {
    const IsaScope scope(isa);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      auto in = inputs_of({1, 70, 70, 1, 1, 16}, dtype);
      in.k[0][66][0][3] = NAN;
      const auto bad = attention(in.q, in.k, in.v).isnan().any(3).flatten();
      EXPECT_FALSE(bad.narrow(0, 0, 66).any().item<bool>()) << name_of(isa) << ", " << dtype;
      EXPECT_TRUE(bad.narrow(0, 66, 4).all().item<bool>()) << name_of(isa) << ", " << dtype;
    }
  }
}

TEST(AttentionTest, BitsDoNotDependOnThreadsOrRepetition) {
  const int threads = at::get_num_threads();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto in = inputs_of({3, 100, 100, 4, 2, 32}, dtype);
    at::set_num_threads(1);
    const auto first = results_of(attention, in, {}, dtype);
    const auto again = results_of(attention, in, {}, dtype);
    at::set_num_threads(2);
    const auto two = results_of(attention, in, {}, dtype);
    at::set_num_threads(threads);
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(first[i].equal(again[i])) << i;
      EXPECT_TRUE(first[i].equal(two[i])) << i;
    }
  }
}

/// Central differences of sum(out * grad_out) along random directions, against the gradients of
/// `dtype`.
void expect_finite_differences(at::ScalarType dtype, double step, double tolerance) {
  const auto in = inputs_of({2, 9, 11, 4, 2, 16}, dtype);
  const auto grads = results_of(attention, in, {}, dtype);
  const auto loss = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return (attention(q, k, v).to(at::kDouble) * in.grad_out.to(at::kDouble)).sum().item<double>();
  };
  for (int input = 0; input < 3; ++input) {
    const auto& x = input == 0 ? in.q : input == 1 ? in.k : in.v;
    const auto direction = at::randn(x.sizes(), x.options());
    const auto at_offset = [&](double offset) {
      const auto moved = x + direction * offset;
      return loss(input == 0 ? moved : in.q, input == 1 ? moved : in.k, input == 2 ? moved : in.v);
    };
    const double expected = (at_offset(step) - at_offset(-step)) / (2 * step);
    const double actual = (grads[input + 1] * direction).sum().item<double>();
    EXPECT_NEAR(actual, expected, tolerance * std::max(1.0, std::abs(expected))) << input;
  }
}

TEST(AttentionTest, GradientsEqualFiniteDifferences) {
  expect_finite_differences(at::kDouble, 1e-5, 1e-7);  // LibTorch's operators
  expect_finite_differences(at::kFloat, 1e-2, 2e-3);   // our kernel
}

TEST(AttentionTest, OtherDtypesGoThroughLibTorch) {
  for (const Shape& shape : {Shape{2, 20, 20, 4, 2, 16}, Shape{1, 5, 20, 4, 2, 16},
                             Shape{2, 20, 20, 4, 2, 16, true, 6}}) {
    const auto in = inputs_of(shape, at::kDouble);
    const AttentionOptions options{.window = shape.window};
    const auto actual = results_of(attention, in, options, at::kDouble);
    const auto expected = results_of(attention_reference, in, options, at::kDouble);
    for (int i = 0; i < 4; ++i) EXPECT_LT(largest_error(actual[i], expected[i]), 1e-12) << i;
  }
  const auto described = at::empty({2, 8, 4, 16}, at::device(at::kMeta));
  EXPECT_EQ(attention(described, described, described).sizes(), described.sizes());
}

TEST(AttentionTest, RefusesWhatDoesNotFit) {
  const auto q = at::randn({1, 8, 4, 16});
  EXPECT_THROW(attention(q, at::randn({1, 8, 3, 16}), at::randn({1, 8, 3, 16})), c10::ValueError);
  EXPECT_THROW(attention(q, at::randn({1, 8, 4, 8}), at::randn({1, 8, 4, 8})), c10::ValueError);
  EXPECT_THROW(attention(q, q, q.to(at::kBFloat16)), c10::ValueError);
  EXPECT_THROW(attention(q, q.narrow(1, 0, 5), q.narrow(1, 0, 5)), c10::ValueError);
  EXPECT_THROW(attention(q[0], q[0], q[0]), c10::ValueError);
  EXPECT_THROW(attention(q, q, q, {.window = 0}), c10::ValueError);
  EXPECT_THROW(attention(q, q, q, {.causal = false, .window = 2}), c10::ValueError);
}

TEST(AttentionTest, RefusesASecondDerivative) {
  const auto q = at::randn({1, 8, 2, 16}).requires_grad_(true);
  const auto loss = attention(q, q, q).sum();
  EXPECT_THROW(torch::autograd::grad({loss}, {q}, {}, true, /*create_graph=*/true), c10::Error);
}

}  // namespace
}  // namespace tessera::kernels
