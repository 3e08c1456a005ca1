#include "tests/support/expect.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

Tolerance or_default(Tolerance wanted, at::ScalarType dtype) {
  Tolerance usual{0, 0};
  if (dtype == at::kFloat) usual = {1e-5, 1.3e-6};
  if (dtype == at::kDouble) usual = {1e-7, 1e-7};
  if (dtype == at::kBFloat16) usual = {1e-5, 1.6e-2};
  if (dtype == at::kHalf) usual = {1e-5, 1e-3};
  return {wanted.absolute < 0 ? usual.absolute : wanted.absolute,
          wanted.relative < 0 ? usual.relative : wanted.relative};
}

}  // namespace

void expect_close(const at::Tensor& actual, const at::Tensor& expected, Tolerance tolerance) {
  ASSERT_TRUE(actual.defined() && expected.defined());
  ASSERT_EQ(actual.sizes(), expected.sizes());
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  if (actual.numel() == 0) return;
  const auto allowed = or_default(tolerance, actual.scalar_type());
  const auto a = actual.detach().to(at::kCPU, at::kDouble).reshape({-1});
  const auto b = expected.detach().to(at::kCPU, at::kDouble).reshape({-1});
  auto excess = (a - b).abs() - allowed.absolute - allowed.relative * b.abs();
  excess = at::where(a.eq(b) | (a.isnan() & b.isnan()), at::full_like(excess, -1), excess);
  excess = at::nan_to_num(excess, /*nan=*/1e300, /*posinf=*/1e300);
  const auto worst = excess.argmax().item<int64_t>();
  const auto bad = excess.gt(0).sum().item<int64_t>();
  EXPECT_EQ(bad, 0) << "of " << a.numel() << " elements; the worst, [" << worst
                    << "] of the flat tensor, is " << a[worst].item<double>() << ", expected "
                    << b[worst].item<double>() << " within " << allowed.absolute << " + "
                    << allowed.relative << " * |expected|";
}

void expect_line(const std::function<void()>& action, const std::string& text) {
  try {
    action();
    FAIL() << "expected: " << text;
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), ::testing::HasSubstr(text));
  }
}

CollectiveCounter::Counts CollectiveCounter::counts() const {
  const auto now = axis_.counters();
  return {.all_reduce = now.all_reduce.calls - start_.all_reduce.calls,
          .broadcast = now.broadcast.calls - start_.broadcast.calls,
          .all_gather = now.all_gather.calls - start_.all_gather.calls,
          .reduce_scatter = now.reduce_scatter.calls - start_.reduce_scatter.calls,
          .all_to_all = now.all_to_all.calls - start_.all_to_all.calls,
          .barrier = now.barrier.calls - start_.barrier.calls};
}

}  // namespace tessera
