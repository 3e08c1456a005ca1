#include "tessera/comm/reduce.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

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

TEST(Reduce, MaximumAndMinimumKeepANaN) {
  constexpr int64_t kCount = 1100;  // more than a block, and not whole vectors
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const auto op : {ReduceOp::max, ReduceOp::min}) {
      for (size_t ranks = 1; ranks <= 3; ++ranks) {
        for (size_t with_nan = 0; with_nan < ranks; ++with_nan) {
          std::vector<at::Tensor> tensors;
          std::vector<const void*> parts;
          for (size_t r = 0; r < ranks; ++r) {
            tensors.push_back(at::full({kCount}, static_cast<double>(r) - 1, dtype));
            if (r == with_nan) tensors[r].slice(0, 0, kCount, 3).fill_(NAN);
            parts.push_back(tensors[r].const_data_ptr());
          }
          auto expected = tensors[0];
          for (const auto& tensor : tensors) {
            expected =
                op == ReduceOp::max ? at::maximum(expected, tensor) : at::minimum(expected, tensor);
          }
          auto result = at::empty({kCount}, dtype);
          reduce_parts(op, dtype, parts, result.data_ptr(), kCount);
          EXPECT_TRUE(result.allclose(expected, 0, 0, /*equal_nan=*/true))
              << c10::toString(dtype) << " " << name_of(op) << ", rank " << with_nan << " of "
              << ranks;
        }
      }
    }
  }
}

TEST(Reduce, RefusesWhatItCannotDo) {
  EXPECT_THROW(check_reducible(ReduceOp::avg, at::kLong), c10::ValueError);
  EXPECT_THROW(check_reducible(ReduceOp::sum, at::kBool), c10::ValueError);
  EXPECT_NO_THROW(check_reducible(ReduceOp::avg, at::kHalf));
}

}  // namespace
}  // namespace tessera::comm
