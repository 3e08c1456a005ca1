#include "tessera/report/histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HistogramTest, BinsAreOfRoundWidths) {
  const std::vector<int64_t> values{0, 1, 19, 20, 99};
  const auto five = histogram_of(values, 5);
  EXPECT_EQ(five.width, 20);
  EXPECT_THAT(five.counts, ElementsAre(3, 1, 0, 0, 1));
  EXPECT_EQ(histogram_of(values, 4).width, 50);
  EXPECT_EQ(histogram_of(values, 100).width, 1);
  EXPECT_EQ(histogram_of(std::vector<int64_t>{0, 1'000'000}, 20).width, 100'000);
  const auto far = histogram_of(std::vector<int64_t>{1017, 1043}, 4);
  EXPECT_EQ(far.first, 1010);
  EXPECT_EQ(far.width, 10);
  EXPECT_THAT(far.counts, ElementsAre(1, 0, 0, 1));
  EXPECT_TRUE(histogram_of({}, 5).counts.empty());
}

TEST(HistogramTest, EveryBinHasALineAndWhatOccursIsSeen) {
  std::vector<int64_t> values(1000, 5);
  values.push_back(25);
  EXPECT_EQ(histogram_text(histogram_of(values, 3), 30),
            "  0 .. 9  1,000  #############\n"
            "10 .. 19      0\n"
            "20 .. 29      1  #\n");
  EXPECT_EQ(histogram_text({}, 80), "");
}

TEST(HistogramTest, APictureHasABarForEachBinThatIsNotEmpty) {
  const auto svg =
      histogram_svg(histogram_of(std::vector<int64_t>{1, 1, 30}, 4), "a <b>", "c", "tokens");
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt;"));
  size_t bars = 0;
  for (size_t at = 0; (at = svg.find("class=\"bar\"", at)) != std::string::npos; ++at) ++bars;
  EXPECT_EQ(bars, 2);
  EXPECT_THAT(histogram_svg({}, "", "", ""), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace tessera::report
