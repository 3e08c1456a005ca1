#include "tessera/schedule/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/schedule/check.h"
#include "tessera/schedule/generate.h"
#include "tests/support/temporary_folder.h"

namespace tessera::schedule {
namespace {

using ::testing::HasSubstr;

class CsvTest : public tessera::testing::TemporaryFolderTest {
 protected:
  Schedule read(const std::string& text) const {
    write_file(folder_ / "table.csv", text);
    return read_csv(folder_ / "table.csv");
  }

  /// What it says of `text`, without the folder.
  std::string refusal(const std::string& text) const {
    auto message = tessera::testing::message_of([&] { read(text); });
    if (message.starts_with(folder_.string())) message.erase(0, folder_.string().size() + 1);
    return message;
  }
};

TEST_F(CsvTest, WhatIsWrittenIsReadAgain) {
  for (const auto& family : families()) {
    for (const int p : {1, 3, 4}) {
      const auto schedule =
          make_schedule({.family = family.family, .num_ranks = p, .num_micro_batches = 9});
      const auto again = read(csv_text(schedule));
      EXPECT_EQ(again.ranks, schedule.ranks) << family.name << p;
      EXPECT_EQ(again.rank_of_stage, schedule.rank_of_stage);
      EXPECT_EQ(again.num_stages, schedule.num_stages);
      EXPECT_EQ(again.num_micro_batches, 9);
    }
  }
}

TEST_F(CsvTest, ColumnsAreSteps) {
  EXPECT_EQ(csv_text(make_schedule({Family::one_f_one_b, 2, 2})),
            "0F0,0F1,,0B0,,0B1\n"
            ",1F0,1B0,1F1,1B1\n");
  EXPECT_THAT(csv_text(make_schedule({Family::dual_pipe_v, 2, 4})),
              HasSubstr(",(0F3;3B1)OVERLAP_F_B,"));
}

TEST_F(CsvTest, ColumnsAreThoseOfPyTorch) {
  auto theirs = read_file("tests/fixtures/schedules/LoopedBFS_p3_m5_v2.csv");
  auto ours = csv_text(read(theirs));
  std::erase(theirs, '\r');
  EXPECT_EQ(ours, theirs);
}

TEST_F(CsvTest, ReadsWhatOthersWrite) {
  // Carriage returns, spaces, quotes, no line end, empty cells and lines at the end, lowered cells.
  const auto schedule = read(
      "0UNSHARD, 0F0,0SEND_F0,,\"0RECV_B0\",0B0,0REDUCE_GRAD,0RESHARD\r\n1RECV_F0,1F0 ,1I0,1W0,"
      "1SEND_B0\r\n\r\n");
  EXPECT_EQ(schedule.num_ranks(), 2);
  EXPECT_EQ(csv_text(schedule), "0F0,,,0B0\n,1F0,1I0,1W0\n");
  EXPECT_NO_THROW(check(schedule));
}

TEST_F(CsvTest, NamesFileLineAndCell) {
  EXPECT_EQ(refusal("0F0,0B0\n1F0,xyz\n"),
            "table.csv:2: cell 2: expected an action as 2F0: stage, F, B, I or W, micro-batch, got "
            "'xyz'");
  EXPECT_EQ(refusal("0G0"),
            "table.csv:1: cell 1: expected F, B, I or W after the stage, got '0G0'");
  EXPECT_EQ(refusal("0F"),
            "table.csv:1: cell 1: expected a micro-batch at the end, as in 2F0, got '0F'");
  EXPECT_EQ(refusal("0F1x"),
            "table.csv:1: cell 1: expected a micro-batch at the end, as in 2F0, got '0F1x'");
  EXPECT_EQ(refusal(",(0F1;1B0)"),
            "table.csv:1: cell 2: expected a pair as (1F1;2B0)OVERLAP_F_B, got '(0F1;1B0)'");
  EXPECT_EQ(refusal("(0F1)OVERLAP_F_B"),
            "table.csv:1: cell 1: expected two actions, as in (1F1;2B0)OVERLAP_F_B, got "
            "'(0F1)OVERLAP_F_B'");
  EXPECT_THAT(refusal("4294967296F0"), HasSubstr("cell 1: expected an action"));
  EXPECT_THAT(refusal("-1F0"), HasSubstr("cell 1: expected an action"));
  EXPECT_THAT(refusal("999999F999999"), HasSubstr("too many; is a number mistyped?"));
  EXPECT_EQ(refusal("\n\n"), "table.csv: expected one line for each rank, got an empty file");
}

TEST_F(CsvTest, AStageOnTwoRanksIsForTheChecker) {
  const auto schedule = read("0F0,1F0,1B0\n0B0\n");
  EXPECT_THAT(tessera::testing::message_of([&] { check(schedule); }),
              HasSubstr("rank 1: 0B0: stage 0 is on rank 0"));
}

}  // namespace
}  // namespace tessera::schedule
