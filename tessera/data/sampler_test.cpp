#include "tessera/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tessera/data/testing.h"

namespace tessera::data {
namespace {

TEST(Sampler, UnshuffledIsTheIndexModuloN) {
  const Sampler sampler({.num_samples = 7, .shuffle = false});
  for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(sampler(i), i % 7);
}

/// True if one epoch holds every sample once.
bool is_permutation_of_all(const Sampler& sampler, int64_t n, int64_t epoch) {
  std::vector<bool> seen(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t sample = sampler(epoch * n + i);
    if (sample < 0 || sample >= n || seen[static_cast<size_t>(sample)]) return false;
    seen[static_cast<size_t>(sample)] = true;
  }
  return true;
}

TEST(Sampler, EveryEpochIsAPermutation) {
  for (int64_t n = 1; n <= 2000; ++n) {
    EXPECT_TRUE(is_permutation_of_all(Sampler({.num_samples = n, .seed = 5}), n, n % 3)) << n;
  }
  for (const int64_t n : {65536, 65537, 1000003, 2097151}) {
    EXPECT_TRUE(is_permutation_of_all(Sampler({.num_samples = n, .seed = 6}), n, 1)) << n;
  }
}

TEST(Sampler, HugeCountsStayInRange) {
  const int64_t n = (int64_t{1} << 40) + 1;
  const Sampler sampler({.num_samples = n});
  int64_t low = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t sample = sampler(3 * n + i);
    ASSERT_GE(sample, 0);
    ASSERT_LT(sample, n);
    low += sample < n / 2;
  }
  EXPECT_NEAR(static_cast<double>(low), 500.0, 80.0);  // 5 standard deviations
}

TEST(Sampler, DependsOnSeedAndEpochAlone) {
  const int64_t n = 1000;
  const auto epoch = [&](uint64_t seed, int64_t number) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < n; ++i)
      order.push_back(Sampler({.num_samples = n, .seed = seed})(number * n + i));
    return order;
  };
  EXPECT_EQ(epoch(1, 0), epoch(1, 0));
  const auto same_places = [](const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
    int64_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i];
    return count;
  };
  // Two random orders agree in one place on average.
  EXPECT_LT(same_places(epoch(1, 0), epoch(1, 1)), 10);
  EXPECT_LT(same_places(epoch(1, 0), epoch(2, 0)), 10);
}

/// Chi-square of how often each sample stands at `place` over many epochs, per degree of freedom.
double unevenness(int64_t n, int64_t place, int64_t num_epochs) {
  const Sampler sampler({.num_samples = n, .seed = 9});
  std::vector<double> count(static_cast<size_t>(n));
  for (int64_t epoch = 0; epoch < num_epochs; ++epoch)
    count[static_cast<size_t>(sampler(epoch * n + place))] += 1;
  const double expected = static_cast<double>(num_epochs) / static_cast<double>(n);
  double sum = 0;
  for (const double c : count) sum += (c - expected) * (c - expected) / expected;
  return sum / static_cast<double>(n - 1);
}

TEST(Sampler, EverySampleIsAsLikelyAtEveryPlace) {
  for (const int64_t n : {2, 3, 5, 6, 16, 17, 100}) {
    for (const int64_t place : {int64_t{0}, n / 2, n - 1}) {
      EXPECT_LT(unevenness(n, place, 20000), n < 10 ? 8.0 : 2.5) << n << " at " << place;
    }
  }
}

TEST(Sampler, NeighboursAreUnrelated) {
  // The difference of neighbours (mod n) falls evenly into 16 classes.
  const int64_t n = 160000;
  const Sampler sampler({.num_samples = n, .seed = 4});
  std::vector<double> count(16);
  for (int64_t i = 1; i < n; ++i) {
    const int64_t step = (sampler(i) - sampler(i - 1) + n) % n;
    count[static_cast<size_t>(step * 16 / n)] += 1;
  }
  double chi_square = 0;
  for (const double c : count) chi_square += (c - 10000) * (c - 10000) / 10000;
  EXPECT_LT(chi_square, 45);  // 15 degrees of freedom: exceeded once in 10,000
}

TEST(Sampler, RefusesNoSamples) {
  EXPECT_THAT(testing::refusal([] { Sampler({.num_samples = 0}); }),
              ::testing::HasSubstr("at least one sample"));
}

}  // namespace
}  // namespace tessera::data
