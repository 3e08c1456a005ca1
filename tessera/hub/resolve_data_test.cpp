// Against a Hub of our own on this machine.
#include "tessera/hub/resolve_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/data/testing.h"
#include "tests/support/http_server.h"
#include "tests/support/temporary_folder.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TestHub;

class ResolveData : public tessera::testing::TemporaryFolderTest {
 protected:
  ResolvedData resolved(const std::string& entry, const TestHub& hub) {
    return resolve_data(entry, [&] {
      ResolveOptions options{.settings = {.cache = folder_ / "hub",
                                          .endpoint = hub.endpoint(),
                                          .connect_seconds = 2,
                                          .stall_seconds = 2,
                                          .max_attempts = 2,
                                          .retry_seconds = 0.01}};
      options.settings.offline = offline_;
      options.on_notice = [this](const std::string& line) { notice_ = line; };
      options.on_progress = [this](const Progress& progress) { progress_ = progress; };
      return options;
    });
  }
  fs::path snapshot() const {
    return folder_ / "hub/datasets--org--model/snapshots" / TestHub::kCommit;
  }
  std::string path(const std::string& name) const { return (snapshot() / name).string(); }

  bool offline_ = false;
  std::string notice_;
  Progress progress_;
};

std::map<std::string, testing::HubFile> data_set() {
  return {{"README.md", {"---\nlicense: mit\n---\n"}},
          {"data/train-00000-of-00002.parquet", {"first", true}},
          {"data/train-00001-of-00002.parquet", {"second", true}},
          {"data/test-00000-of-00001.parquet", {"third", true}}};
}

TEST_F(ResolveData, DownloadsTheFilesOfASplitAlone) {
  TestHub hub(data_set());
  hub.is_dataset = true;
  const auto train = resolved("org/model", hub);
  EXPECT_THAT(train.paths, ElementsAre(path("data/train-00000-of-00002.parquet"),
                                       path("data/train-00001-of-00002.parquet")));
  EXPECT_EQ(read_file(train.paths[1]), "second");
  EXPECT_EQ(progress_.total_bytes, 11);
  EXPECT_FALSE(fs::exists(path("data/test-00000-of-00001.parquet")));
  EXPECT_EQ(read_file(folder_ / "hub/datasets--org--model/refs/main"), TestHub::kCommit);
  EXPECT_EQ(train.pinned, std::string("org/model@") + TestHub::kCommit);
  EXPECT_THAT(resolved("org/model@main:test", hub).paths,
              ElementsAre(path("data/test-00000-of-00001.parquet")));

  offline_ = true;
  const auto requests = hub.hub_requests().size();
  EXPECT_EQ(resolved(train.pinned, hub).paths, train.paths);
  EXPECT_EQ(resolved("org/model:train", hub).pinned, train.pinned + ":train");
  EXPECT_EQ(hub.hub_requests().size(), requests);
  fs::remove(path("data/train-00001-of-00002.parquet"));
  EXPECT_THAT(refusal([&] { resolved("org/model", hub); }),
              HasSubstr("expected 2 parts of data/train, got 1"));
}

TEST_F(ResolveData, RefusalsSayWhatThereIs) {
  TestHub hub(data_set());
  hub.is_dataset = true;
  EXPECT_EQ(refusal([&] { resolved("org/model:dev", hub); }),
            "org/model:dev: expected one of its splits test, train, got 'dev'");
  EXPECT_THAT(refusal([&] { resolved("org/other", hub); }),
              HasSubstr("org/other: no such folder, and no such data set at http"));
  offline_ = true;
  EXPECT_THAT(refusal([&] { resolved("org/modle", hub); }),
              HasSubstr("org/modle: no such file or folder, not in the cache "));
  EXPECT_THAT(refusal([&] { resolved("org/modle", hub); }), HasSubstr("did you mean 'org/model'?"));
}

TEST_F(ResolveData, WithoutTheHubTheCacheServes) {
  TestHub hub(data_set());
  hub.is_dataset = true;
  const auto before = resolved("org/model", hub);
  hub.unavailable = 1000;
  EXPECT_EQ(resolved("org/model", hub).paths, before.paths);
  EXPECT_THAT(notice_, HasSubstr("org/model: the Hub cannot be reached ("));
}

TEST_F(ResolveData, WhatIsThereAsAPathIsTakenAsItIs) {
  const auto never = [](const std::string& entry) {
    return resolve_data(entry, []() -> ResolveOptions {
      ADD_FAILURE() << "a name was looked up";
      return {.settings = {}};
    });
  };
  fs::create_directories(folder_ / "mine/data");
  write_file(folder_ / "mine/data/train-00000-of-00001.jsonl", "{}\n");
  write_file(folder_ / "mine/data/test-00000-of-00001.jsonl", "{}\n");
  const auto mine = (folder_ / "mine").string();
  EXPECT_THAT(never(mine).paths, ElementsAre(mine));
  EXPECT_THAT(never(mine + ":test").paths, ElementsAre(mine + "/data/test-00000-of-00001.jsonl"));
  for (const char* entry : {"no/such.jsonl", "no/such.bin", "no/*.csv", "single", "a/b/c", "/x/y"})
    EXPECT_THAT(never(entry).paths, ElementsAre(entry));
}

}  // namespace
}  // namespace tessera::hub
