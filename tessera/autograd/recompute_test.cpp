#include "tessera/autograd/recompute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/kernels/attention.h"
#include "tessera/kernels/linear.h"

namespace tessera::autograd {
namespace {

using namespace kernels;  // the operators that take part

using Use = TapeGuard::Use;

std::vector<at::Tensor> one(Operator by, const at::Tensor& result) {
  return compute_once(by, 1, [&] { return std::vector<at::Tensor>{result}; });
}

TEST(TapeTest, ProductsAndAttentionAreRecordedAndReplayed) {
  const auto x = at::randn({2, 4, 2, 8}), weight = at::randn({3, 8});
  Tape tape;
  at::Tensor product, attended;
  {
    const TapeGuard guard(tape, Use::record);
    product = kernels::linear(x, weight);
    attended = attention(x, x, x);
  }
  const auto kept = tape.finish();
  ASSERT_EQ(kept.size(), 3u);  // attention: log-sum-exp as well
  EXPECT_TRUE(kept[0].is_same(product));
  EXPECT_TRUE(kept[1].is_same(attended));

  tape.begin(kept);
  {
    const TapeGuard guard(tape, Use::replay);
    EXPECT_EQ(kernels::linear(x * 2, weight).data_ptr(), product.data_ptr());
    EXPECT_EQ(attention(x * 2, x, x).data_ptr(), attended.data_ptr());
    EXPECT_THROW(kernels::linear(x, weight), c10::Error);
    EXPECT_TRUE(tape.end());
  }
  tape.begin(kept);
  {
    const TapeGuard guard(tape, Use::replay);
    kernels::linear(x, weight);
    EXPECT_FALSE(tape.end());
  }
  EXPECT_NE(kernels::linear(x, weight).data_ptr(), product.data_ptr());
}

TEST(TapeTest, KeepsWhatComesUpToTheProductBehindAttention) {
  using enum Operator;
  // Twice attention: as a query that is worked on in parts.
  const std::vector<Operator> call{exchange, product, product, attention, attention, exchange,
                                   product,  sum,     product, attention, product,   sum};
  constexpr size_t kKept = 8;
  for (const bool drops_last : {false, true}) {
    Tape tape(Keeps::to_attention, drops_last);
    {
      const TapeGuard guard(tape, Use::record);
      for (size_t i = 0; i < call.size(); ++i) one(call[i], at::full({2}, static_cast<double>(i)));
    }
    const auto kept = tape.finish();
    ASSERT_EQ(kept.size(), kKept);
    for (int run = 0; run < 2; ++run) {
      tape.begin(kept);
      const TapeGuard guard(tape, Use::replay);
      for (size_t i = 0; i < call.size(); ++i) {
        const auto again = one(call[i], at::full({2}, -1.0))[0];
        const bool is_dropped = drops_last && i + 1 == call.size();
        EXPECT_EQ(again.isnan().all().item<bool>(), is_dropped);
        if (is_dropped) continue;
        EXPECT_EQ(again[0].item<double>(), i < kKept ? static_cast<double>(i) : -1);
      }
      EXPECT_TRUE(tape.end());
    }
  }
}

TEST(TapeTest, KnowsAttentionThatSeveralOperatorsCompute) {
  const auto x = at::randn({2, 4, 2, 8}, at::kDouble), weight = at::randn({8, 8}, at::kDouble);
  Tape tape(Keeps::to_attention);
  {
    const TapeGuard guard(tape, Use::record);
    const auto attended = attention(kernels::linear(x, weight), x, x);
    kernels::linear(kernels::linear(attended, weight), weight);
  }
  EXPECT_EQ(tape.finish().size(), 2u);  // the first two products
}

TEST(TapeTest, KeepsAllOfACallWithoutAttention) {
  Tape tape(Keeps::to_attention);
  {
    const TapeGuard guard(tape, Use::record);
    one(Operator::product, at::ones({2})), one(Operator::product, at::ones({2}));
  }
  EXPECT_EQ(tape.finish().size(), 2u);
}

TEST(TapeTest, DropsTheLastThoughItWouldBeKept) {
  for (const auto keeps : {Keeps::all, Keeps::to_attention}) {
    Tape tape(keeps, /*drops_last=*/true);
    {
      const TapeGuard guard(tape, Use::record);
      one(Operator::attention, at::ones({2})), one(Operator::product, at::ones({3}));
    }
    const auto kept = tape.finish();
    ASSERT_EQ(kept.size(), 1u);
    tape.begin(kept);
    const TapeGuard guard(tape, Use::replay);
    EXPECT_EQ(one(Operator::attention, at::zeros({2}))[0][0].item<float>(), 1);
    const auto last = one(Operator::product, at::zeros({3}))[0];
    EXPECT_EQ(last.sizes(), at::IntArrayRef{3});
    EXPECT_TRUE(last.isnan().all().item<bool>());
  }
}

TEST(TapeTest, RecordsWhatAnOuterTapeReplays) {
  const auto kept = at::ones({2});
  Tape outer, inner;
  outer.put(Operator::product, {kept});
  outer.begin(outer.finish());
  {
    const TapeGuard outer_guard(outer, Use::replay);
    const TapeGuard inner_guard(inner, Use::record);
    EXPECT_TRUE(one(Operator::product, at::zeros({2}))[0].is_same(kept));
  }
  EXPECT_TRUE(inner.finish()[0].is_same(kept));
}

TEST(TapeTest, NoticesAChangeInPlace) {
  Tape tape;
  const TapeGuard guard(tape, Use::record);
  auto y = kernels::linear(at::ones({2, 3}), at::ones({4, 3}));
  y.view({-1}).add_(1);
  EXPECT_THROW(tape.finish(), c10::ValueError);
}

}  // namespace
}  // namespace tessera::autograd
