#include "tessera/autograd/recompute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/kernels/attention.h"
#include "tessera/kernels/linear.h"

namespace tessera::autograd {
namespace {

using namespace kernels;  // the operators that take part

using Use = TapeGuard::Use;

TEST(TapeTest, ProductsAndAttentionAreRecordedAndReplayed) {
  const auto x = at::randn({2, 4, 2, 8}), weight = at::randn({3, 8});
  Tape recorded;
  at::Tensor product, attended;
  {
    const TapeGuard guard(recorded, Use::record);
    product = kernels::linear(x, weight);
    attended = attention(x, x, x);
  }
  ASSERT_EQ(recorded.tensors().size(), 3u);  // attention: log-sum-exp as well
  EXPECT_TRUE(recorded.tensors()[0].is_same(product));
  EXPECT_TRUE(recorded.tensors()[1].is_same(attended));

  Tape replayed(recorded.tensors());
  {
    const TapeGuard guard(replayed, Use::replay);
    EXPECT_EQ(kernels::linear(x * 2, weight).data_ptr(), product.data_ptr());
    EXPECT_FALSE(replayed.is_used_up());
    EXPECT_EQ(attention(x * 2, x, x).data_ptr(), attended.data_ptr());
    EXPECT_TRUE(replayed.is_used_up());
    EXPECT_THROW(kernels::linear(x, weight), c10::Error);
  }
  EXPECT_NE(kernels::linear(x, weight).data_ptr(), product.data_ptr());
}

TEST(TapeTest, RecordsWhatAnOuterTapeReplays) {
  const auto kept = at::ones({2});
  Tape outer({kept}), inner;
  const TapeGuard outer_guard(outer, Use::replay);
  const TapeGuard inner_guard(inner, Use::record);
  const auto taken = compute_once(1, [] { return std::vector<at::Tensor>{at::zeros({2})}; })[0];
  EXPECT_TRUE(taken.is_same(kept));
  EXPECT_TRUE(inner.tensors()[0].is_same(kept));
}

TEST(TapeTest, NoticesAChangeInPlace) {
  Tape tape;
  const TapeGuard guard(tape, Use::record);
  auto y = kernels::linear(at::ones({2, 3}), at::ones({4, 3}));
  EXPECT_NO_THROW(tape.check_unchanged());
  y.view({-1}).add_(1);
  EXPECT_THROW(tape.check_unchanged(), c10::ValueError);
}

}  // namespace
}  // namespace tessera::autograd
