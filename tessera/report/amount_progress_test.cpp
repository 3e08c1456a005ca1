#include "tessera/report/amount_progress.h"

#include <gtest/gtest.h>

namespace tessera::report {
namespace {

TEST(AmountProgress, SaysHowFarHowFastAndHowLong) {
  constexpr int64_t kGibibyte = int64_t{1} << 30;
  EXPECT_EQ(amount_progress_line("copy", {.done = kGibibyte / 2, .total = kGibibyte, .seconds = 2}),
            "copy   50 %  512.0 MiB of 1.0 GiB  256.0 MiB/s  eta 0:02");
  EXPECT_EQ(amount_progress_line("copy", {.done = kGibibyte, .total = kGibibyte, .seconds = 4}),
            "copy  100 %  1.0 GiB of 1.0 GiB  256.0 MiB/s  eta 0:00");
  EXPECT_EQ(amount_progress_line("copy", {.done = 0, .total = kGibibyte, .seconds = 1}),
            "copy    0 %  0 B of 1.0 GiB");
  EXPECT_EQ(amount_progress_line("copy", {}), "copy  100 %  0 B of 0 B");
  EXPECT_EQ(amount_progress_line(
                "a.txt", {.done = 2000, .total = 5000, .seconds = 2, .unit = Amount::tokens}),
            "a.txt   40 %  2,000 of 5,000 tokens  1,000/s  eta 0:03");
}

}  // namespace
}  // namespace tessera::report
