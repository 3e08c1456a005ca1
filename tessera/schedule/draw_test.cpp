#include "tessera/schedule/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tessera/schedule/generate.h"

namespace tessera::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

std::string text_of(const ScheduleOptions& options, int columns, const Times& times = {}) {
  const auto schedule = make_schedule(options);
  return schedule_text(schedule, simulate(schedule, times), columns);
}

TEST(ScheduleText, NamesActionsWhereThereIsRoom) {
  EXPECT_EQ(text_of({Family::one_f_one_b, 2, 2}, 80),
            "rank 0 |F0 F1       B0---    B1--- |\n"
            "rank 1 |   F0 B0--- F1 B1---       |\n"
            "F forward, B backward; F1 is micro-batch 1\n");
  EXPECT_EQ(text_of({Family::zbv, 2, 2}, 80),
            "rank 0 |0F0 0F1     3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0     0I1 0W1 |\n"
            "rank 1 |    1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1     |\n"
            "F forward, I input part, W weight part; 2F1 is stage 2, micro-batch 1\n");
}

TEST(ScheduleText, FitsEveryWidth) {
  for (const auto& family : families()) {
    const auto schedule =
        make_schedule({.family = family.family, .num_ranks = 8, .num_micro_batches = 32});
    for (const int columns : {40, 80, 133, 400, 2000}) {
      for (const Times& times : {Times{}, Times{{1.7}, {2.3}, {0.9}, 0.31}}) {
        std::istringstream lines(schedule_text(schedule, simulate(schedule, times), columns));
        std::string line;
        for (int rank = 0; rank < 8; ++rank) {
          ASSERT_TRUE(std::getline(lines, line));
          EXPECT_LE(static_cast<int>(line.size()), columns) << family.name;
          EXPECT_GT(line.find_first_not_of(".", 7), 6u);
        }
      }
    }
  }
}

TEST(ScheduleText, LettersAreWhatFillsAColumn) {
  EXPECT_EQ(text_of({Family::gpipe, 2, 8}, 40),
            "rank 0 |FFFFFFFF...BBBBBBBBBBBBBBBB|\n"
            "rank 1 |.FFFFFFFFBBBBBBBBBBBBBBBB..|\n"
            "F forward, B backward, . idle\n");
  EXPECT_EQ(text_of({Family::dual_pipe_v, 2, 6}, 60),
            "rank 0 |FFFfiwfXXX.XXXXXXXXXXXXXXXbb.XXXbbIWIW|\n"
            "rank 1 |.FfFfFbbXXXXXXXXXXXXXXXXXXXXXbbBB.iIwW|\n"
            "F forward, B backward, I input part, W weight part, X forward and backward at once, "
            ". idle; small: later stages\n");
  // Six units of time a column, of which the idle one at each end is shown once.
  EXPECT_EQ(text_of({Family::gpipe, 2, 60}, 40),
            "rank 0 |FFFFFFFFFF.BBBBBBBBBBBBBBBBBBBB|\n"
            "rank 1 |FFFFFFFFFFBBBBBBBBBBBBBBBBBBBB.|\n"
            "F forward, B backward, . idle\n");
}

TEST(ScheduleSvg, HasEveryAction) {
  const auto schedule = make_schedule({Family::zb_h1, 4, 8});
  const auto svg = schedule_svg(schedule, simulate(schedule),
                                {.title = "ZB-H1 <a&b>", .subtitle = "4 ranks", .unit = "ms"});
  for (const auto* kind : {"F", "I", "W"}) {
    EXPECT_EQ(count(svg, std::string("<rect class=\"") + kind + "\""), 33u) << kind;  // and legend
    EXPECT_EQ(count(svg, std::string("<rect class=\"B")), 0u);
  }
  EXPECT_EQ(count(svg, "rank "), 4u);
  EXPECT_THAT(svg, HasSubstr("ZB-H1 &lt;a&amp;b&gt;"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(svg, HasSubstr("bubble 11.1 %, peak 4"));
  EXPECT_THAT(svg, HasSubstr(">time, ms</text>"));
  EXPECT_THAT(svg, HasSubstr(">number: micro-batch</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("later stages")));
  EXPECT_THAT(svg, HasSubstr(">7</text>"));
}

TEST(ScheduleSvg, PairsShareASlot) {
  const auto schedule = make_schedule({Family::dual_pipe_v, 2, 4});
  const auto svg = schedule_svg(schedule, simulate(schedule));
  size_t pairs = 0;
  for (const auto& rank : schedule.ranks)
    pairs += static_cast<size_t>(std::ranges::count_if(rank, &Action::with_next));
  EXPECT_GT(pairs, 0u);
  EXPECT_EQ(count(svg, "height=\"12\""), 2 * pairs);
  EXPECT_THAT(svg, HasSubstr("later stages"));
}

TEST(ScheduleSvg, StaysReadableWhenTimesDiffer) {
  const auto schedule = make_schedule({Family::zb_2p, 8, 32});
  const auto svg = schedule_svg(schedule, simulate(schedule, {{100}, {100}, {0.001}}));
  EXPECT_THAT(svg, HasSubstr("width=\"6262\""));  // no wider than that
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  const auto nothing = schedule_svg(schedule, simulate(schedule, {{0}, {0}, {0}}));
  EXPECT_THAT(nothing, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace tessera::schedule
