#include "tessera/report/byte_progress.h"

#include <gtest/gtest.h>

namespace tessera::report {
namespace {

TEST(ByteProgress, SaysHowFarHowFastAndHowLong) {
  constexpr int64_t kGibibyte = int64_t{1} << 30;
  EXPECT_EQ(byte_progress_line("copy", kGibibyte / 2, kGibibyte, 2),
            "copy   50 %  512.0 MiB of 1.0 GiB  256.0 MiB/s  eta 0:02");
  EXPECT_EQ(byte_progress_line("copy", kGibibyte, kGibibyte, 4),
            "copy  100 %  1.0 GiB of 1.0 GiB  256.0 MiB/s  eta 0:00");
  EXPECT_EQ(byte_progress_line("copy", 0, kGibibyte, 1), "copy    0 %  0 B of 1.0 GiB");
  EXPECT_EQ(byte_progress_line("copy", 0, 0, 0), "copy  100 %  0 B of 0 B");
}

}  // namespace
}  // namespace tessera::report
