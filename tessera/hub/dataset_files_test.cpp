#include "tessera/hub/dataset_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/data/testing.h"

namespace tessera::hub {
namespace {

using data::testing::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;

Names files(const Names& all, const std::string& split, const std::string& config = "",
            const std::string& card = "") {
  return split_files(all, card, {.config = config, .split = split}, "org/data");
}

TEST(SplitFiles, PartsBelowData) {
  const Names all = {"README.md",
                     "data/train-00001-of-00002.parquet",
                     "data/train-00000-of-00002.parquet",
                     "data/test-00000-of-00001.parquet",
                     "data/dev_sft-00000-of-00001.parquet",
                     ".gitattributes"};
  EXPECT_THAT(files(all, "train"), ElementsAre("data/train-00000-of-00002.parquet",
                                               "data/train-00001-of-00002.parquet"));
  EXPECT_THAT(files(all, "test"), ElementsAre("data/test-00000-of-00001.parquet"));
  EXPECT_EQ(refusal([&] { files(all, "tset"); }),
            "org/data: expected one of its splits test, train, validation, got 'tset'");
}

TEST(SplitFiles, APartThatIsMissingIsRefused) {
  EXPECT_EQ(refusal([] { files({"data/train-00000-of-00003.parquet"}, "train"); }),
            "org/data: expected 3 parts of data/train, got 1; the rest is missing");
}

TEST(SplitFiles, NamesAndFoldersSayTheSplit) {
  EXPECT_THAT(files({"train.jsonl", "test.jsonl"}, "train"), ElementsAre("train.jsonl"));
  EXPECT_THAT(files({"chats-valid.csv", "chats-training.csv"}, "validation"),
              ElementsAre("chats-valid.csv"));
  EXPECT_THAT(files({"training/a.json", "evaluation/a.json"}, "test"),
              ElementsAre("evaluation/a.json"));
  EXPECT_THAT(files({"a.jsonl", "b.jsonl.gz", "LICENSE"}, "train"),
              ElementsAre("a.jsonl", "b.jsonl.gz"))
      << "all of them, where none says it";
  EXPECT_THAT(files({"a.jsonl", "test.jsonl"}, "test"), ElementsAre("test.jsonl"));
  EXPECT_THAT(files({"contest.jsonl", "detrained.jsonl"}, "train"),
              ElementsAre("contest.jsonl", "detrained.jsonl"))
      << "no words of splits";
  EXPECT_THAT(files({"en/train.jsonl", "de/train.jsonl"}, "train", "de"),
              ElementsAre("de/train.jsonl"));
  EXPECT_THAT(refusal([] { files({"model.safetensors"}, "train"); }),
              HasSubstr("org/data: no files of rows in it: expected .jsonl"));
}

const std::string kCardOfTwo =
    "---\nlicense: mit\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n"
    "    path: english/*.jsonl\n  - split: held_out\n    path: [english/more/a.jsonl, b.jsonl]\n"
    "- config_name: de\n  default: true\n  data_files: german/**\n- config_name: fr\n"
    "  data_dir: french\n---\n# Data\n";
const Names kFilesOfTwo = {
    "b.jsonl",         "english/1.jsonl",  "english/2.jsonl", "english/more/a.jsonl",
    "french/test.csv", "french/train.csv", "german/x/1.jsonl"};

TEST(SplitFiles, TheCardSaysThem) {
  const auto of = [](const std::string& split, const std::string& config) {
    return files(kFilesOfTwo, split, config, kCardOfTwo);
  };
  EXPECT_THAT(of("train", "en"), ElementsAre("english/1.jsonl", "english/2.jsonl"));
  EXPECT_THAT(of("held_out", "en"), ElementsAre("b.jsonl", "english/more/a.jsonl"));
  EXPECT_THAT(of("train", ""), ElementsAre("german/x/1.jsonl"));
  EXPECT_THAT(of("test", "fr"), ElementsAre("french/test.csv"));
  EXPECT_EQ(refusal([&] { of("train", "it"); }),
            "org/data: expected one of its configurations en, de, fr, as in org/data:en/train, got "
            "'it'");
  EXPECT_EQ(refusal([&] { of("test", "en"); }),
            "org/data: expected one of its splits held_out, train, got 'test'");
}

TEST(SplitFiles, WithoutADefaultOneOfSeveralMustBeNamed) {
  const std::string card =
      "---\nconfigs:\n- config_name: a\n  data_dir: a\n- config_name: b\n  data_dir: b\n---\n";
  EXPECT_EQ(refusal([&] {
              files({"a/train.csv", "b/train.csv"}, "train", "", card);
            }),
            "org/data: expected one of its configurations a, b, as in org/data:a/train");
  EXPECT_THAT(refusal([&] { files({"a.csv"}, "train", "", "---\nconfigs: [\n---\n"); }),
              HasSubstr("org/data: README.md: its head is no YAML"));
  EXPECT_THAT(files({"a.csv"}, "train", "", "# No head"), ElementsAre("a.csv"));
}

}  // namespace
}  // namespace tessera::hub
