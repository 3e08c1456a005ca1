#include "tessera/data/dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::data {
namespace {

using ::tessera::data::testing::bytes_of;
using ::tessera::data::testing::refusal;
using tessera::testing::TemporaryFolder;
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
  const auto parts = dataset.within({.count = 2, .first_token = 1, .stride = 6, .num_samples = 1});
  EXPECT_EQ(parts.size(), 2);
  EXPECT_THAT(sample(parts, 0), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(sample(parts, 1), ElementsAre(7, 8, 9, 10, 11));
}

TEST(Dataset, DocumentsEndWithTheirToken) {
  const TemporaryFolder folder;
  const auto path = folder.write("t.bin", bytes_of<uint16_t>({5, 6, 0, 7, 0, 0, 8, 9, 3}));
  const auto documents_of = [&](std::optional<int64_t> end, int64_t row) {
    const auto datasets = open_datasets({.train = {.paths = {path}},
                                         .validation_fraction = 0,
                                         .seq_len = 4,
                                         .document_mask = true,
                                         .document_end = end});
    std::vector<int64_t> inputs(4), targets(4);
    std::vector<DocumentRange> documents;
    datasets.train.read(row, inputs, targets, documents);
    auto text = fmt::format("{} {}:", fmt::join(inputs, ","), fmt::join(targets, ","));
    for (const auto& document : documents) {
      text += fmt::format(" [{}, {})", document.begin, document.end);
    }
    return text;
  };
  EXPECT_EQ(documents_of(0, 0), "5,6,0,7 6,0,-100,0: [0, 3) [3, 4)");
  EXPECT_EQ(documents_of(0, 1), "0,0,8,9 -100,-100,9,3: [0, 1) [1, 2) [2, 4)");
  EXPECT_EQ(documents_of(4, 0), "5,6,0,7 6,0,7,0: [0, 4)") << "none ends here";
  EXPECT_THAT(refusal([&] { documents_of(std::nullopt, 0); }), HasSubstr("set document_end"));
}

TEST(Dataset, TextFilesAreDocuments) {
  const TemporaryFolder folder;
  folder.write("text/a.txt", "ab");
  folder.write("text/b.txt", "cde");
  const auto datasets = open_datasets({.train = {.paths = {folder.path() / "text"}},
                                       .validation_fraction = 0,
                                       .seq_len = 5,
                                       .document_mask = true});
  std::vector<int64_t> inputs(5), targets(5);
  std::vector<DocumentRange> documents;
  datasets.train.read(0, inputs, targets, documents);
  EXPECT_THAT(targets, ElementsAre('b', 0, kIgnoredTarget, 'd', 'e'));
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0].end, 3);
}

/// Every token of every sample.
std::set<int64_t> tokens_of(const Dataset& dataset) {
  std::set<int64_t> all;
  for (int64_t k = 0; k < dataset.size(); ++k) {
    const auto tokens = sample(dataset, k);
    EXPECT_EQ(tokens.back(), tokens.front() + dataset.seq_len());  // in one stretch
    all.insert(tokens.begin(), tokens.end());
  }
  return all;
}

TEST(Datasets, WhatIsHeldOutIsSpreadAndNotTrainedOn) {
  const TemporaryFolder folder;
  struct Case {
    int64_t num_tokens, seq_len;
    double fraction;
  };
  for (const auto& [num_tokens, seq_len, fraction] :
       {Case{60000, 4, 0.01}, Case{60000, 7, 0.1}, Case{60000, 16, 0.5}, Case{60000, 1, 0.3},
        Case{60000, 128, 0.9}, Case{401, 4, 0.5}, Case{401, 4, 0.001}, Case{11, 2, 0.01}}) {
    const auto path = counting_file(folder, num_tokens);
    const auto sets = open_datasets(
        {.train = {.paths = {path}}, .validation_fraction = fraction, .seq_len = seq_len});
    const auto train = tokens_of(sets.train), held_out = tokens_of(*sets.validation);
    const auto name = fmt::format("{} tokens, {}, {}", num_tokens, seq_len, fraction);
    std::vector<int64_t> both;
    std::ranges::set_intersection(train, held_out, std::back_inserter(both));
    EXPECT_TRUE(both.empty()) << name;
    const int64_t num_samples = (num_tokens - 1) / seq_len;
    const auto samples = static_cast<double>(num_samples);
    EXPECT_NEAR(static_cast<double>(sets.validation->size()), std::max(1.0, fraction * samples),
                0.1 * fraction * samples + 1)
        << name;
    // Little is lost: at most a sample for each stretch and the tail.
    EXPECT_GE(static_cast<double>(train.size() + held_out.size()),
              0.9 * static_cast<double>(num_tokens) - static_cast<double>(2 * seq_len))
        << name;
    if (num_tokens < 1000) continue;
    for (int tenth = 0; tenth < 10; ++tenth) {  // each part of the text has some of both
      const int64_t begin = tenth * num_tokens / 10, end = (tenth + 1) * num_tokens / 10;
      const auto has_one = [&](const std::set<int64_t>& tokens) {
        const auto found = tokens.lower_bound(begin);
        return found != tokens.end() && *found < end;
      };
      EXPECT_TRUE(has_one(train) && has_one(held_out)) << name << ": part " << tenth;
    }
  }
}

TEST(Datasets, HoldsOutStretches) {
  const TemporaryFolder folder;
  const auto path = counting_file(folder, 401);  // 100 samples of 4
  auto [train, validation] =
      open_datasets({.train = {.paths = {path}}, .validation_fraction = 0.1, .seq_len = 4});
  ASSERT_TRUE(validation);
  EXPECT_EQ(validation->size(), 10);  // five stretches of two, one at the end of each 80 tokens
  EXPECT_THAT(sample(*validation, 0), ElementsAre(71, 72, 73, 74, 75));
  EXPECT_THAT(sample(*validation, 9), ElementsAre(395, 396, 397, 398, 399));
  EXPECT_EQ(train.size(), 85);
  EXPECT_THAT(sample(train, 16), ElementsAre(64, 65, 66, 67, 68));
  EXPECT_THAT(sample(train, 17), ElementsAre(80, 81, 82, 83, 84));
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
  EXPECT_EQ(line({.train = {.paths = {path}}, .seq_len = 9}),
            path + ": too short for one sample: expected at least 10 tokens (seq_len + 1), got 9");
  EXPECT_THAT(line({.train = {.paths = {path}}, .seq_len = 8}),
              HasSubstr("leave none to train on"));
  EXPECT_THAT(line({.train = {.paths = {path}}, .seq_len = 0}),
              HasSubstr("seq_len: expected at least 1"));
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
