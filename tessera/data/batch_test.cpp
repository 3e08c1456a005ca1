#include "tessera/data/batch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "tessera/data/dataset.h"
#include "tessera/data/mixed_rows.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::data {
namespace {

using ::tessera::data::testing::bytes_of;
using ::tessera::data::testing::refusal;
using tessera::testing::TemporaryFolder;
using ::testing::HasSubstr;

constexpr int64_t kSeqLen = 4;

/// `samples` samples of four tokens; the first token of sample k is 4 k.
std::shared_ptr<const Rows> counting(int64_t samples) {
  const TemporaryFolder folder;  // the mapping outlives the file
  std::vector<int64_t> tokens(static_cast<size_t>(samples * kSeqLen + 1));
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto path = folder.write("t.bin", bytes_of<uint16_t>(tokens));
  return std::make_shared<Dataset>(
      std::make_shared<TokenSource>(TokenSource::open({.paths = {path}})), kSeqLen);
}

/// Which sample stands in each row.
std::vector<int64_t> samples_of(const Batch& batch) {
  std::vector<int64_t> samples;
  for (int64_t row = 0; row < batch.inputs.size(0); ++row) {
    samples.push_back(batch.inputs[row][0].item<int64_t>() / kSeqLen);
  }
  return samples;
}

TEST(Loader, TargetsAreInputsShiftedByOne) {
  const Loader loader(counting(6), {.global_batch = 3});
  const auto batch = loader.batch(0);
  EXPECT_EQ(batch.inputs.sizes(), at::IntArrayRef({3, kSeqLen}));
  EXPECT_EQ(batch.inputs.scalar_type(), at::kLong);
  EXPECT_TRUE(batch.targets.equal(batch.inputs + 1));
  EXPECT_EQ(batch.num_tokens, 12);
}

TEST(Loader, UnshuffledBatchesFollowTheFileAndWrap) {
  const Loader loader(counting(6), {.global_batch = 4, .shuffle = false});
  EXPECT_EQ(samples_of(loader.batch(0)), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(samples_of(loader.batch(1)), (std::vector<int64_t>{4, 5, 0, 1}));
  const Loader larger_than_the_data(counting(3), {.global_batch = 5, .shuffle = false});
  EXPECT_EQ(samples_of(larger_than_the_data.batch(0)), (std::vector<int64_t>{0, 1, 2, 0, 1}));
}

TEST(Loader, RanksTogetherSeeTheRowsOfOneRank) {
  const auto dataset = counting(23);  // no batch divides it: batches cross epochs
  for (const bool shuffle : {false, true}) {
    for (const int64_t global_batch : {4, 7, 8}) {
      const LoaderOptions one{.global_batch = global_batch, .seed = 3, .shuffle = shuffle};
      for (const int64_t world_size : {1, 2, 3, 4}) {
        for (int64_t step = 0; step < 12; ++step) {
          std::vector<at::Tensor> inputs, targets;
          int64_t num_tokens = 0;
          for (int64_t rank = 0; rank < world_size; ++rank) {
            auto mine = one;
            mine.rank = rank;
            mine.world_size = world_size;
            const auto batch = Loader(dataset, mine).batch(step);
            inputs.push_back(batch.inputs);
            targets.push_back(batch.targets);
            num_tokens += batch.num_tokens;
          }
          const auto whole = Loader(dataset, one).batch(step);
          ASSERT_TRUE(at::cat(inputs).equal(whole.inputs)) << world_size << " ranks, step " << step;
          ASSERT_TRUE(at::cat(targets).equal(whole.targets));
          ASSERT_EQ(num_tokens, whole.num_tokens);
        }
      }
    }
  }
}

TEST(Loader, AnEpochHoldsEverySampleOnce) {
  const Loader loader(counting(10), {.global_batch = 4, .seed = 1});
  std::map<int64_t, int> times;
  for (int64_t step = 0; step < 5; ++step) {  // 20 rows: two epochs
    for (const auto sample : samples_of(loader.batch(step))) ++times[sample];
  }
  EXPECT_EQ(times.size(), 10u);
  for (const auto& [sample, count] : times) EXPECT_EQ(count, 2) << sample;
}

TEST(Loader, MicroBatchesAreRowsOfTheBatch) {
  const Loader loader(counting(23), {.global_batch = 8, .rank = 1, .world_size = 3});
  const auto mine = loader.rows();
  EXPECT_EQ(mine.begin, 2);
  EXPECT_EQ(mine.end, 5);
  const auto whole = loader.batch(5, 0, 8);
  EXPECT_TRUE(loader.batch(5, 3, 5).inputs.equal(whole.inputs.slice(0, 3, 5)));
  EXPECT_TRUE(loader.batch(5).targets.equal(whole.targets.slice(0, 2, 5)));
}

TEST(Loader, IgnoresRowsPastTheEndWhenAsked) {
  const LoaderOptions options{.global_batch = 4, .shuffle = false, .past_end = PastEnd::ignore};
  const Loader loader(counting(6), options);
  EXPECT_EQ(loader.num_batches(), 2);
  const auto last = loader.batch(1);
  EXPECT_EQ(last.num_tokens, 2 * kSeqLen);
  EXPECT_TRUE(last.targets.slice(0, 2).eq(kIgnoredTarget).all().item<bool>());
  EXPECT_TRUE(last.targets.slice(0, 0, 2).ge(0).all().item<bool>());
  // A rank may have nothing to count at all.
  auto second = options;
  second.rank = 1;
  second.world_size = 2;
  EXPECT_EQ(Loader(counting(1), second).batch(0).num_tokens, 0);
}

TEST(Loader, InOrderEachSampleOfAMixtureComesOnce) {
  const Loader drawn(std::make_shared<MixedRows>(
                         std::vector<std::shared_ptr<const Rows>>{counting(2), counting(5)},
                         std::vector<double>{3, 1}),
                     {.global_batch = 4});
  const auto in_order = drawn.in_order();
  EXPECT_EQ(samples_of(in_order.batch(0)), (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(in_order.batch(1).num_tokens, 3 * kSeqLen);
}

TEST(Loader, RowsCoverTheBatchForAnyWorld) {
  for (int64_t world_size = 1; world_size <= 9; ++world_size) {
    int64_t next = 0;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const auto rows = rows_of(rank, world_size, 13);
      EXPECT_EQ(rows.begin, next);
      EXPECT_GE(rows.size(), 13 / world_size);
      EXPECT_LE(rows.size(), 13 / world_size + 1);
      next = rows.end;
    }
    EXPECT_EQ(next, 13);
  }
}

TEST(Loader, RefusesRanksAndBatchesWithoutSamples) {
  const auto line = [](int64_t samples, const LoaderOptions& options) {
    return refusal([&] { Loader(counting(samples), options); });
  };
  EXPECT_THAT(line(9, {.global_batch = 2, .world_size = 3}),
              HasSubstr("at least one sequence for each of 3 ranks, got 2"));
  EXPECT_THAT(line(2, {.global_batch = 3, .world_size = 3, .shuffle = false}),
              HasSubstr("more ranks than samples"));
  EXPECT_THAT(line(7, {.global_batch = 8}),
              HasSubstr("fewer samples than global_batch: expected at least 8"));
  EXPECT_EQ(line(7, {.global_batch = 8, .shuffle = false}), "(accepted)");
}

}  // namespace
}  // namespace tessera::data
