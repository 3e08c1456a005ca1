#include "tessera/data/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "tessera/data/mixed_rows.h"
#include "tessera/data/testing.h"

namespace tessera::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::vector<double>> kWeights = {
    {1},          {2, 1},         {1, 1, 1}, {0.7, 0.2, 0.1},
    {5, 3, 2, 2}, {100, 1, 1, 7}, {3, 1e-3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};

TEST(Mixture, AnyBeginningDiffersByLessThanOneAndAnyPeriodByNothing) {
  for (const auto& weights : kWeights) {
    const Mixture mixture(weights);
    const int64_t period = mixture.period();
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<int64_t> count(weights.size());
    std::vector<std::vector<int64_t>> before;  // counts in front of each place
    for (int64_t place = 0; place < 2 * period; ++place) {
      before.push_back(count);
      const auto [source, position] = mixture(place);
      EXPECT_EQ(position, count[source]++);
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_LT(std::abs(static_cast<double>(count[i]) -
                           weights[i] / sum * static_cast<double>(place + 1)),
                  1)
            << weights.size() << " sources, place " << place;
        ASSERT_EQ(mixture.turns_of(i, place + 1), count[i]);
      }
    }
    for (int64_t place = 0; place < period; ++place) {
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_EQ(
            before[static_cast<size_t>(place + period)][i] - before[static_cast<size_t>(place)][i],
            mixture.parts()[i])
            << "from place " << place;
      }
    }
  }
}

TEST(Mixture, WeightsAreTakenAsWholeNumbers) {
  EXPECT_THAT(Mixture(std::vector{0.7, 0.2, 0.1}).parts(), ElementsAre(7, 2, 1));
  EXPECT_THAT(Mixture(std::vector{4.0, 2.0}).parts(), ElementsAre(2, 1));
  EXPECT_THAT(Mixture(std::vector{1.5, 1.0}).parts(), ElementsAre(3, 2));
  EXPECT_THAT(Mixture(std::vector{1 / 3.0, 2 / 3.0}).parts(), ElementsAre(1, 2));
  const Mixture irrational(std::vector{std::sqrt(2.0), 1.0});
  EXPECT_NEAR(
      static_cast<double>(irrational.parts()[0]) / static_cast<double>(irrational.parts()[1]),
      std::sqrt(2.0), 1e-4);
}

TEST(Mixture, RefusesWhatIsNoWeight) {
  for (const double weight : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(testing::refusal([&] {
                  Mixture(std::vector{weight, 1.0});
                }),
                HasSubstr("weights: expected numbers above 0"));
  }
  EXPECT_THAT(testing::refusal([] {
                Mixture(std::vector{1e9, 1.0});
              }),
              HasSubstr("weights: expected each at least 1/65536 of their sum"));
}

TEST(MixtureSampler, OneSourceIsThePlainSampler) {
  const MixtureSampler mixture({.sources = {{.num_rows = 11}}, .seed = 5});
  const Sampler plain({.num_samples = 11, .seed = 5});
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(mixture(i), plain(i));
}

TEST(MixtureSampler, SmallSourcesRepeatInOtherOrdersAndLargeOnesDoNot) {
  const MixtureSampler sampler(
      {.sources = {{.num_rows = 6, .weight = 2}, {.num_rows = 100, .weight = 1}}, .seed = 3});
  std::vector<int64_t> small;
  std::set<int64_t> large;
  for (int64_t i = 0; i < 90; ++i) {
    const auto row = sampler(i);
    if (row < 6) {
      small.push_back(row);
    } else {
      EXPECT_LT(row, 106);
      EXPECT_TRUE(large.insert(row).second) << "twice within an epoch";
    }
  }
  ASSERT_EQ(small.size(), 60U);
  EXPECT_EQ(large.size(), 30U);
  std::set<std::vector<int64_t>> orders;
  for (auto epoch = small.begin(); epoch != small.end(); epoch += 6) {
    std::vector order(epoch, epoch + 6);
    orders.insert(order);
    std::ranges::sort(order);
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5));
  }
  EXPECT_GT(orders.size(), 5U) << "the same order again and again";
  EXPECT_DOUBLE_EQ(sampler.epochs_of(0, 90), 10);
  EXPECT_DOUBLE_EQ(sampler.epochs_of(1, 90), 0.3);
  EXPECT_DOUBLE_EQ(sampler.share_of(0), 2 / 3.0);
}

TEST(MixtureSampler, SourcesOfOneSizeHaveOrdersOfTheirOwn) {
  const MixtureSampler sampler({.sources = {{.num_rows = 50}, {.num_rows = 50}}});
  int same = 0;
  for (int64_t i = 0; i < 100; i += 2) same += sampler(i) % 50 == sampler(i + 1) % 50;
  EXPECT_LT(same, 10);
}

/// Rows of one token, `first` + row.
class CountedRows : public Rows {
 public:
  CountedRows(int64_t first, int64_t size) : first_(first), size_(size) {}
  int64_t size() const override { return size_; }
  int64_t seq_len() const override { return 1; }
  int64_t num_documents() const override { return size_; }
  int64_t num_tokens() const override { return size_; }
  std::string digest() const override { return std::to_string(first_); }
  void read(int64_t row, std::span<int64_t> inputs, std::span<int64_t>,
            std::vector<DocumentRange>& documents) const override {
    inputs[0] = first_ + row;
    documents.push_back({.begin = 0, .end = 1, .index = row});
  }

 private:
  int64_t first_, size_;
};

TEST(MixedRows, AreTheSourcesOneAfterTheOther) {
  const std::vector<std::shared_ptr<const Rows>> sources = {std::make_shared<CountedRows>(100, 3),
                                                            std::make_shared<CountedRows>(200, 1),
                                                            std::make_shared<CountedRows>(300, 2)};
  const MixedRows rows(sources, {3, 2, 1});
  std::vector<int64_t> read;
  for (int64_t row = 0; row < rows.size(); ++row) {
    std::vector<int64_t> inputs(1), targets(1);
    std::vector<DocumentRange> documents;
    rows.read(row, inputs, targets, documents);
    read.push_back(inputs[0]);
    ASSERT_EQ(documents.size(), 1U);
    EXPECT_EQ(documents[0].index, row) << "no document of two sources has one index";
  }
  EXPECT_EQ(rows.num_documents(), 6);
  EXPECT_THAT(read, ElementsAre(100, 101, 102, 200, 300, 301));
  EXPECT_EQ(rows.num_tokens(), 6);
  ASSERT_EQ(rows.sources().size(), 3U);
  EXPECT_EQ(rows.sources()[1].num_rows, 1);
  EXPECT_EQ(rows.sources()[1].weight, 2);
  EXPECT_NE(rows.digest(), MixedRows(sources, {2, 3, 1}).digest());
  EXPECT_EQ(MixedRows(sources, {}).sources().size(), 1U) << "without weights all rows are alike";
}

}  // namespace
}  // namespace tessera::data
