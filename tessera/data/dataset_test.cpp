#include "tessera/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tessera/data/testing.h"

namespace tessera::data {
namespace {

using ::tessera::data::testing::bytes_of;
using ::tessera::data::testing::refusal;
using ::tessera::data::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A file of the tokens 0, 1, 2, ..
std::string counting_file(const TemporaryFolder& folder, int64_t num_tokens,
                          const std::string& name = "t.bin") {
  std::vector<int64_t> tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), 0);
  return folder.write(name, bytes_of<uint16_t>(tokens));
}

std::vector<int64_t> sample(const Dataset& dataset, int64_t k) {
  std::vector<int64_t> tokens(static_cast<size_t>(dataset.seq_len()) + 1);
  dataset.read(k, tokens);
  return tokens;
}

TEST(Dataset, CutsSamplesThatShareOneToken) {
  const TemporaryFolder folder;
  for (const auto& [num_tokens, samples] :
       std::vector<std::pair<int64_t, int64_t>>{{5, 1}, {8, 1}, {9, 2}, {13, 3}}) {
    const auto source = std::make_shared<TokenSource>(
        TokenSource::open({.paths = {counting_file(folder, num_tokens)}}));
    EXPECT_EQ(Dataset(source, 4).size(), samples) << num_tokens;
  }
  const auto source =
      std::make_shared<TokenSource>(TokenSource::open({.paths = {counting_file(folder, 13)}}));
  const Dataset dataset(source, 4);
  EXPECT_THAT(sample(dataset, 0), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(sample(dataset, 2), ElementsAre(8, 9, 10, 11, 12));
  EXPECT_THAT(sample(dataset.slice(1, 3), 0), ElementsAre(4, 5, 6, 7, 8));
  EXPECT_EQ(dataset.slice(1, 3).slice(1, 2).size(), 1);
  EXPECT_THAT(sample(dataset.slice(1, 3).slice(1, 2), 0), ElementsAre(8, 9, 10, 11, 12));
}

TEST(Datasets, HoldsOutTheLastPart) {
  const TemporaryFolder folder;
  const auto path = counting_file(folder, 401);  // 100 samples of 4
  auto [train, validation] =
      open_datasets({.train = {.paths = {path}}, .validation_fraction = 0.1, .seq_len = 4});
  EXPECT_EQ(train.size(), 90);
  ASSERT_TRUE(validation);
  EXPECT_EQ(validation->size(), 10);
  EXPECT_THAT(sample(*validation, 0), ElementsAre(360, 361, 362, 363, 364));
  EXPECT_EQ(open_datasets({.train = {.paths = {path}}, .validation_fraction = 1e-6, .seq_len = 4})
                .validation->size(),
            1);
  EXPECT_FALSE(open_datasets({.train = {.paths = {path}}, .validation_fraction = 0, .seq_len = 4})
                   .validation);
}

TEST(Datasets, TakesValidationFilesOfItsOwn) {
  const TemporaryFolder folder;
  const auto other = counting_file(folder, 9, "v.bin");
  const auto sets = open_datasets({.train = {.paths = {counting_file(folder, 401)}},
                                   .validation_paths = {other},
                                   .seq_len = 4});
  EXPECT_EQ(sets.train.size(), 100);
  EXPECT_EQ(sets.validation->size(), 2);
}

TEST(Datasets, RefusesTooLittleAndTooLarge) {
  const TemporaryFolder folder;
  const auto path = counting_file(folder, 9);
  const auto line = [](const DatasetsOptions& options) {
    return refusal([&] { open_datasets(options); });
  };
  EXPECT_EQ(
      line({.train = {.paths = {path}}, .seq_len = 9}),
      path + ": too short for one sample: expected at least 10 tokens (data.seq_len + 1), got 9");
  EXPECT_THAT(line({.train = {.paths = {path}}, .seq_len = 8}),
              HasSubstr("leave none to train on"));
  EXPECT_THAT(line({.train = {.paths = {path}}, .seq_len = 0}),
              HasSubstr("data.seq_len: expected at least 1"));
  EXPECT_THAT(line({.train = {.paths = {path}}, .validation_fraction = 1, .seq_len = 4}),
              HasSubstr("below 1, got 1"));
  EXPECT_THAT(line({.train = {.paths = {path}}, .seq_len = 4, .vocab_size = 8}),
              HasSubstr("token 8 at byte offset 16 is beyond the vocabulary: expected 0 to 7"));
  const auto long_file = counting_file(folder, 100, "long.bin");
  EXPECT_THAT(line({.train = {.paths = {long_file}}, .validation_paths = {path}, .seq_len = 20}),
              HasSubstr("t.bin: too short for one sample"));
}

}  // namespace
}  // namespace tessera::data
