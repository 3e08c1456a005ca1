#include "tessera/comm/reduce.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/expect.h"

namespace tessera::comm {
namespace {

TEST(Reduce, TakesPartsInTheOrderOfRanks) {
  // (1e8 + 1) - 1e8 = 0 in fp32, 1e8 - 1e8 + 1 = 1: the order shows.
  const float a = 1e8f, b = 1, c = -1e8f;
  float sum = 0;
  reduce_parts(ReduceOp::sum, at::kFloat, std::vector<const void*>{&a, &b, &c}, &sum, 1);
  EXPECT_EQ(sum, 0);
  reduce_parts(ReduceOp::sum, at::kFloat, std::vector<const void*>{&a, &c, &b}, &sum, 1);
  EXPECT_EQ(sum, 1);
}

TEST(Reduce, OutputMayBeAPartAndBlocksMayBeUneven) {
  auto a = at::arange(5000, at::kFloat), b = at::ones({5000});
  const auto expected = (a + b) / 2;
  reduce_parts(ReduceOp::avg, at::kFloat, std::vector<const void*>{a.data_ptr(), b.data_ptr()},
               b.data_ptr(), 5000);
  expect_close(b, expected, {0, 0});
}

TEST(Reduce, RefusesWhatItCannotDo) {
  EXPECT_THROW(check_reducible(ReduceOp::avg, at::kLong), c10::ValueError);
  EXPECT_THROW(check_reducible(ReduceOp::sum, at::kBool), c10::ValueError);
  EXPECT_NO_THROW(check_reducible(ReduceOp::avg, at::kHalf));
}

}  // namespace
}  // namespace tessera::comm
