// `tessera schedule` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

ProgramEnd schedule(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "schedule");
  return run_tessera(arguments);
}

nlohmann::json json_of(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const auto end = schedule(std::move(arguments));
  EXPECT_EQ(end.exit_code, 0) << end.error;
  return nlohmann::json::parse(end.out, nullptr, /*allow_exceptions=*/false);
}

class ScheduleCommand : public tessera::testing::TemporaryFolderTest {};

TEST_F(ScheduleCommand, DrawsAndCounts) {
  const auto end = schedule({"1f1b", "--ranks", "4", "--micro-batches", "8"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(end.error, "");
  EXPECT_EQ(
      end.out,
      R"(1F1B: 4 ranks, 4 stages, 8 micro-batches; forward 1, input part 1, weight part 1, transfer 0
rank 0 |FFFF......BBFBBFBBFBBFBB.BB.BB.BB|
rank 1 |.FFF....BBFBBFBBFBBFBBFBB.BB.BB..|
rank 2 |..FF..BBFBBFBBFBBFBBFBBFBB.BB....|
rank 3 |...FBBFBBFBBFBBFBBFBBFBBFBB......|
F forward, B backward, . idle
time 33, bubble (idle share of all ranks' time) 27.27 %; (p-1)/(m+p-1) without transfers: 27.27 %
rank  stages  bubble   peak activations  at most
0     0       27.27 %  4                 4
1     1       27.27 %  3                 3
2     2       27.27 %  2                 2
3     3       27.27 %  1                 1
)");
}

TEST_F(ScheduleCommand, ListsWhatThereIs) {
  const auto end = schedule({});
  EXPECT_EQ(end.exit_code, 0);
  for (const auto* name :
       {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p",
        "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    EXPECT_THAT(end.out, HasSubstr(std::string("\n") + name + " "));
  }
}

TEST_F(ScheduleCommand, ATableIsWhatWroteIt) {
  const auto csv = (folder_ / "table.csv").string();
  const auto svg = (folder_ / "pictures" / "table.svg").string();
  const std::vector<std::string> times{"--forward-ms",  "3",  "--backward-ms", "5",
                                       "--transfer-ms", "0.5"};
  std::vector<std::string> made{
      "ZBVZeroBubble", "--ranks", "3", "--micro-batches", "7", "--csv", csv, "--svg", svg};
  made.insert(made.end(), times.begin(), times.end());
  std::vector<std::string> read{csv};
  read.insert(read.end(), times.begin(), times.end());
  const auto first = json_of(made), second = json_of(read);
  EXPECT_EQ(first["time"], second["time"]);
  EXPECT_EQ(first["per_rank"][2]["actions"], second["per_rank"][2]["actions"]);
  EXPECT_EQ(first["peak_activations"], 6);
  EXPECT_TRUE(second["per_rank"][0]["peak_limit"].is_null());
  EXPECT_THAT(read_file(svg), HasSubstr("ZBVZeroBubble: 3 ranks, 6 stages, 7 micro-batches"));
}

TEST_F(ScheduleCommand, ReadsPyTorchsTable) {
  const auto table = json_of({"tests/fixtures/schedules/DualPipeV_p4_m11_v2.csv"});
  const auto made = json_of({"DualPipeV", "--ranks", "4", "--micro-batches", "11"});
  EXPECT_EQ(table["time"], made["time"]);
  EXPECT_EQ(table["peak_activations"], 9);
}

TEST_F(ScheduleCommand, FormulasStandBesideWhatIsSimulated) {
  const auto one = json_of({"GPipe", "--ranks", "3", "--micro-batches", "7"});
  EXPECT_NEAR(one["bubble"].get<double>(), 2.0 / 9, 1e-12);
  EXPECT_NEAR(one["formula"]["bubble"].get<double>(), 2.0 / 9, 1e-12);
  // Zero-bubble schedules have none where ranks do not wait for each other between steps.
  const auto two = json_of({"ZB-H2", "--ranks", "4", "--micro-batches", "8"});
  EXPECT_NEAR(two["bubble_without_barrier"].get<double>(), 0, 1e-12);
  EXPECT_NEAR(two["time"].get<double>(), 27, 1e-12);
  EXPECT_EQ(two["formula"]["without_barrier"], true);
  const auto uneven = json_of({"ZB-1p", "--ranks", "2", "--micro-batches", "5", "--forward-ms",
                               "1,2", "--memory-limit", "2"});
  EXPECT_TRUE(uneven["formula"].is_null());
  EXPECT_EQ(uneven["per_rank"][1]["busy"], 30);
}

TEST_F(ScheduleCommand, ASwappedPairIsADeadlock) {
  const auto file = (folder_ / "swapped.csv").string();
  write_file(file, "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  const auto end = schedule({file});
  EXPECT_EQ(end.exit_code, kUserErrorExit);
  EXPECT_EQ(end.out, "");
  EXPECT_EQ(
      end.error,
      "tessera: " + file +
          ": deadlock: 0B0 waits for the gradient from 1B0 on rank 1; 1B0 waits for 1F1, "
          "before it on rank 1; 1F1 waits for the output of 0F1 on rank 0; 0F1 waits for 0B0, "
          "before it on rank 0; put them in another order\n");
}

TEST_F(ScheduleCommand, MistakesAreOneLine) {
  const std::string table = "tests/fixtures/schedules/GPipe_p4_m6.csv";
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{"foo"}, "expected a schedule (GPipe, 1F1B, Interleaved1F1B, "},
      {{"Interleaved"}, "DualPipeV) or a .csv file with one, got 'Interleaved'"},
      {{"1F1"}, "did you mean '1F1B'?"},
      {{"1F1B", "--micro-batches", "3"}, "1F1B: expected --ranks, got none"},
      {{"1F1B", "--ranks", "3"}, "1F1B: expected --micro-batches, got none"},
      {{"1F1B", "--ranks", "0", "--micro-batches", "3"}, "expected at least 1 rank, got 0"},
      {{"1F1B", "--ranks", "x", "--micro-batches", "3"}, "--ranks = x"},
      {{"DualPipeV", "--ranks", "4", "--micro-batches", "7"},
       "DualPipeV: needs two micro-batches for each rank, 8 or more, got 7"},
      {{table, "--micro-batches", "4"},
       "GPipe_p4_m6.csv: --micro-batches: expected 6, which the table needs, got 4"},
      {{table, "--ranks", "2"}, "--ranks: expected 4, which the table needs, got 2"},
      {{table, "--memory-limit", "5"}, "rank 0 holds 6 activations at once; expected at most 5"},
      {{table, "--forward-ms", "1,2"}, "expected one time, or one for each of 4 stages, got 2"},
      {{table, "--forward-ms", "-1"}, "expected times of 0 or more, got -1"},
      {{table, "--forward-ms", "nan"}, "expected times of 0 or more, got nan"},
      {{table, "--input-ms", "1"}, "expected --input-ms and --weight-ms, got --input-ms alone"},
      {{table, "--input-ms", "1", "--weight-ms", "1", "--backward-ms", "1"},
       "--backward-ms: expected it alone"},
      {{table, "--pair-ms", "1"}, "--pair-ms: no forward and backward are computed at once"},
      {{table, "--kept-for-weight", "0.5"}, "--kept-for-weight: no backward is split"},
      {{table, "--svg", "tests"}, "tests: expected a file, got a folder"},
      {{"ZB-1p", "--ranks", "4", "--micro-batches", "8", "--memory-limit", "0"},
       "--memory-limit: expected at least 1 activation, got 0"},
      {{"ZB-1p", "--ranks", "4", "--micro-batches", "8", "--kept-for-weight", "2"},
       "--kept-for-weight: expected a share in [0, 1], got 2"},
      {{"tests/fixtures/schedules/1F1B_p4_m6.csv"}, "1F1B_p4_m6.csv: 0F6 is missing"},
      {{"tests/fixtures/schedules/zero_bubble_table5.csv"},
       "table5.csv:1: cell 1: expected an action"},
      {{"no.csv"}, "no.csv"},
      {{"--ranks", "4"}, "expected a schedule's name or a .csv file, got options alone"}};
  for (const auto& [arguments, message] : mistakes) {
    expect_mistake(schedule(arguments), message);
  }
}

}  // namespace
}  // namespace tessera
