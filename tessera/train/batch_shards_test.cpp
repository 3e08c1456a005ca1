#include "tessera/train/batch_shards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <sstream>
#include <string>

namespace tessera::train {
namespace {

using Batch = std::vector<int64_t>;  // row numbers stand for rows

/// The batches of `rows` numbered rows.
BatchShards<Batch>::Source numbered(int64_t rows, int64_t batch_size, bool drop_last) {
  return [=, next = int64_t{0}]() mutable -> std::optional<Batch> {
    const auto end = std::min(next + batch_size, rows);
    if (next == rows || (drop_last && end - next < batch_size)) return std::nullopt;
    Batch batch;
    for (; next < end; ++next) batch.push_back(next);
    return batch;
  };
}

std::string text_of(BatchShards<Batch> shards) {
  std::vector<std::string> batches;
  while (const auto batch = shards.next()) {
    batches.push_back(fmt::format("{}", fmt::join(*batch, ",")));
  }
  return fmt::format("{}", fmt::join(batches, " "));
}

TEST(BatchShards, GiveEachRankTheRowsThatAccelerateGives) {
  std::ifstream file("tests/fixtures/accelerate/batch_shards.txt");
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line.substr(0, line.find(" :")));
    int64_t rows = 0, batch = 0;
    BatchShardOptions options;
    words >> rows >> batch >> options.size >> options.split_batches >> options.even_batches >>
        options.drop_last;
    options.batch_size = batch;
    std::vector<std::string> found;
    for (options.rank = 0; options.rank < options.size; ++options.rank) {
      found.push_back(
          text_of(BatchShards<Batch>(options, numbered(rows, batch, options.drop_last))));
    }
    EXPECT_EQ(fmt::format("{}", fmt::join(found, " / ")), line.substr(line.find(": ") + 2)) << line;
    ++cases;
  }
  EXPECT_GT(cases, 1000);
}

TEST(BatchShards, TellHowManyRowsOfTheLastStepAreNoRepetition) {
  const auto remainder = [](int64_t rows, int64_t batch, bool split) {
    BatchShards<Batch> shards({.rank = 1, .size = 2, .split_batches = split, .batch_size = batch},
                              numbered(rows, batch, false));
    while (shards.next()) {
    }
    return shards.remainder();
  };
  EXPECT_EQ(remainder(8, 2, false), 0);
  EXPECT_EQ(remainder(9, 2, false), 1);
  EXPECT_EQ(remainder(11, 2, false), 3);
  EXPECT_EQ(remainder(8, 4, true), 0);
  EXPECT_EQ(remainder(11, 4, true), 3);
}

TEST(BatchShards, RefuseToSplitABatchUnevenly) {
  BatchShards<Batch> shards({.size = 2, .split_batches = true, .batch_size = 3},
                            numbered(6, 3, false));
  EXPECT_THROW(shards.next(), c10::ValueError);
}

TEST(BatchShards, TensorsOfAnExampleStayTogether) {
  using Example = torch::data::Example<>;
  bool given = false;
  BatchShards<Example> shards({.rank = 1, .size = 2, .batch_size = 3},
                              [&]() -> std::optional<Example> {
                                if (std::exchange(given, true)) return std::nullopt;
                                return Example{torch::arange(6).reshape({3, 2}), torch::arange(3)};
                              });
  const auto batch = shards.next();  // only rank 0 had rows: these are the first ones again
  ASSERT_TRUE(batch.has_value());
  EXPECT_TRUE(torch::equal(batch->data, torch::arange(6).reshape({3, 2})));
  EXPECT_TRUE(torch::equal(batch->target, torch::arange(3)));
  EXPECT_FALSE(shards.next().has_value());
}

}  // namespace
}  // namespace tessera::train
