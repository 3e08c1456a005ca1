// Against a Hub of our own on this machine.
#include "tessera/hub/push.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tessera/base/digest.h"
#include "tessera/base/file.h"
#include "tessera/data/testing.h"
#include "tests/support/push_hub.h"
#include "tests/support/temporary_folder.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using tessera::testing::TemporaryFolder;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PushHub;

const std::string kLarge = [] {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i) + ",";
  return text;
}();

class PushTest : public ::testing::Test {
 protected:
  PushTest() {
    folder_.write("config.json", R"({"model_type": "llama"})");
    folder_.write("model.safetensors", kLarge);
    folder_.write("sub/tokenizer.json", "{}");
    folder_.write("empty.txt", "");
  }

  PushOptions options(const PushHub& hub) {
    PushOptions options{.folder = folder_.path(),
                        .name = {.repository = "org/model"},
                        .settings = {.endpoint = hub.endpoint(),
                                     .token = PushHub::kToken,
                                     .connect_seconds = 2,
                                     .stall_seconds = 5,
                                     .max_attempts = 3,
                                     .retry_seconds = 0.01}};
    options.on_notice = [this](const std::string& line) { notices_.push_back(line); };
    options.on_progress = [this](const Progress& progress) { progress_ = progress; };
    return options;
  }

  static void expect_all(const PushHub& hub, const std::string& branch = "main") {
    const auto files = hub.files(branch);
    EXPECT_EQ(files.size(), 4U);
    EXPECT_EQ(files.at("config.json").content, R"({"model_type": "llama"})");
    EXPECT_EQ(files.at("sub/tokenizer.json").content, "{}");
    EXPECT_EQ(files.at("empty.txt").content, "");
    EXPECT_EQ(files.at("model.safetensors").content, kLarge);
    EXPECT_TRUE(files.at("model.safetensors").is_large);
    EXPECT_FALSE(files.at("config.json").is_large);
  }

  /// The token goes to the Hub alone, and nobody is told it.
  void expect_no_secret(const PushHub& hub) const {
    for (const auto& request : hub.store_requests()) {
      EXPECT_EQ(request.header("authorization"), "");
      EXPECT_EQ(request.body.find(PushHub::kToken), std::string::npos);
    }
    for (const auto& line : notices_) EXPECT_EQ(line.find(PushHub::kToken), std::string::npos);
  }

  const TemporaryFolder folder_;
  std::vector<std::string> notices_;
  Progress progress_;
};

TEST_F(PushTest, MakesTheRepositoryAndOneCommit) {
  PushHub hub;
  auto private_one = options(hub);
  private_one.is_private = true;
  private_one.message = "First";
  const auto pushed = push(private_one);
  EXPECT_EQ(pushed.num_files, 4);
  EXPECT_EQ(pushed.num_unchanged, 0);
  EXPECT_THAT(pushed.url, HasSubstr("/org/model/commit/"));
  expect_all(hub);
  expect_no_secret(hub);
  EXPECT_TRUE(hub.is_private());
  EXPECT_THAT(hub.messages(), ElementsAre("First"));
  EXPECT_THAT(notices_, Contains("made the private model org/model"));
  EXPECT_THAT(notices_, Contains(HasSubstr("4 of 4 files are new or changed; 575.1 KiB of large")));
  EXPECT_EQ(progress_.done_bytes, std::ssize(kLarge));
  EXPECT_EQ(progress_.total_bytes, std::ssize(kLarge));
}

TEST_F(PushTest, ADataSetOnABranch) {
  PushHub hub;
  hub.is_dataset = true;
  auto dataset = options(hub);
  dataset.name = {.repository = "org/model", .revision = "v2", .kind = RepositoryKind::dataset};
  push(dataset);
  expect_all(hub, "v2");
  EXPECT_TRUE(hub.files("main").empty());
  folder_.write("config.json", "{}");
  dataset.name.revision = "v3";  // of a repository that is there
  push(dataset);
  EXPECT_EQ(hub.files("v3").at("config.json").content, "{}");
}

TEST_F(PushTest, WhatIsThereIsNotSentAgain) {
  PushHub hub;
  push(options(hub));
  const auto requests = hub.hub_requests().size();
  const auto again = push(options(hub));
  EXPECT_EQ(again.num_files, 0);
  EXPECT_EQ(again.num_unchanged, 4);
  EXPECT_EQ(again.url, "");
  EXPECT_EQ(hub.messages().size(), 1U);
  EXPECT_EQ(hub.num_puts(), 1U);
  EXPECT_EQ(hub.hub_requests().size(), requests + 2) << "asked: is it there, which files";

  folder_.write("config.json", "{}");
  folder_.write("copy.safetensors", kLarge);  // another name of a content that is there
  const auto more = push(options(hub));
  EXPECT_EQ(more.num_files, 2);
  EXPECT_EQ(more.num_unchanged, 3);
  EXPECT_EQ(hub.num_puts(), 1U);
  EXPECT_EQ(hub.files().at("copy.safetensors").content, kLarge);
  EXPECT_EQ(hub.files().at("config.json").content, "{}");
}

TEST_F(PushTest, LargeFilesGoInParts) {
  PushHub hub;
  hub.part_bytes = 100'000;
  push(options(hub));
  expect_all(hub);
  EXPECT_EQ(hub.num_puts(), (kLarge.size() + 99'999) / 100'000);
  EXPECT_EQ(progress_.done_bytes, std::ssize(kLarge));
  expect_no_secret(hub);
}

TEST_F(PushTest, AHubThatStoresLargeFilesItselfGetsThemWithoutTheToken) {
  PushHub hub;
  hub.has_own_store = false;
  hub.expired_puts = 1;
  push(options(hub));  // the store refuses tokens
  expect_all(hub);
}

TEST_F(PushTest, EveryFailureOnTheWayIsTriedAgain) {
  for (const size_t part_bytes : {0, 100'000}) {
    PushHub hub;
    hub.part_bytes = part_bytes;
    hub.cut_puts = 1;
    hub.failed_puts = 1;
    hub.unavailable = 2;
    hub.unavailable_status = part_bytes == 0 ? 503 : 429;
    push(options(hub));
    expect_all(hub);
    EXPECT_EQ(hub.messages().size(), 1U);
  }
}

TEST_F(PushTest, AnAddressThatExpiredIsAskedForAgain) {
  PushHub hub;
  hub.expired_puts = 2;
  push(options(hub));
  expect_all(hub);
  PushHub never;
  never.expired_puts = 1000;
  EXPECT_THAT(refusal([&] { push(options(never)); }), HasSubstr(": answers with status 403"));
  EXPECT_TRUE(never.files().empty());
}

TEST_F(PushTest, ACommitWhoseAnswerIsLostIsNotMadeTwice) {
  PushHub hub;
  hub.lost_answers = 1;
  EXPECT_EQ(push(options(hub)).url, hub.endpoint() + "/org/model");
  expect_all(hub);
  EXPECT_EQ(hub.messages().size(), 1U);
}

TEST_F(PushTest, AnInterruptedPushGoesOnWhereItWas) {
  folder_.write("second.safetensors", kLarge + "more");
  PushHub hub;
  auto one_by_one = options(hub);
  one_by_one.settings.num_connections = 1;
  one_by_one.on_progress = [](const Progress& progress) {
    if (progress.done_bytes > std::ssize(kLarge)) throw SystemError("the lid is shut");
  };
  EXPECT_THROW(push(one_by_one), SystemError);
  EXPECT_EQ(hub.num_puts(), 1U);
  EXPECT_TRUE(hub.messages().empty());
  const auto pushed = push(options(hub));
  EXPECT_EQ(pushed.num_files, 5);
  EXPECT_EQ(hub.num_puts(), 2U) << "the first large file was there";
  EXPECT_EQ(progress_.total_bytes, std::ssize(kLarge) + 4);
  EXPECT_EQ(hub.files().at("second.safetensors").content, kLarge + "more");
}

TEST_F(PushTest, HiddenAndUnfinishedFilesStayHere) {
  for (const char* name : {".git/config", ".token", "run.lock", "step.0123456789abcdef.partial/x",
                           "blob.incomplete", "sub/.env"})
    folder_.write(name, "secret");
  const TemporaryFolder elsewhere;
  fs::create_symlink(elsewhere.write("key", "secret"), folder_.path() / "key");
  PushHub hub;
  push(options(hub));
  expect_all(hub);
  EXPECT_EQ(notices_.at(1),
            "left out (hidden, half written, a lock or a link elsewhere): .git, .token, "
            "blob.incomplete, key, run.lock and 2 more");
  for (const auto& request : hub.hub_requests())
    EXPECT_EQ(request.body.find("secret"), std::string::npos);
}

TEST_F(PushTest, AnEmptyLargeFileIsPartOfTheCommit) {
  folder_.write("none.parquet", "");
  PushHub hub;
  push(options(hub));
  EXPECT_EQ(hub.files().at("none.parquet").content, "");
}

TEST_F(PushTest, WhatTheRepositoryIgnoresIsSaid) {
  PushHub hub;
  hub.ignored = "empty.txt";
  push(options(hub));
  EXPECT_EQ(hub.files().size(), 3U);
  EXPECT_THAT(notices_, Contains("left out, as the repository's .gitignore says: empty.txt"));
}

TEST_F(PushTest, APublicRepositoryDoesNotPassForAPrivateOne) {
  PushHub hub;
  hub.exists = true;
  hub.is_public = true;
  auto private_one = options(hub);
  private_one.is_private = true;
  EXPECT_THAT(refusal([&] { push(private_one); }), HasSubstr("org/model: is public at http"));
  EXPECT_TRUE(hub.messages().empty());
}

TEST_F(PushTest, RefusalsAreOneLineWithoutTheToken) {
  PushHub hub;
  auto wrong = options(hub);
  wrong.settings.token = "hf_wrong";
  const auto line = refusal([&] { push(wrong); });
  EXPECT_THAT(line, HasSubstr("does not accept the token: set HF_TOKEN to a valid one (Invalid "));
  EXPECT_THAT(line, Not(HasSubstr("hf_wrong")));
  wrong.settings.token.clear();
  EXPECT_THAT(refusal([&] { push(wrong); }), HasSubstr("a push needs a token with write access"));
  hub.error = "You don't have the rights to create a model under the namespace \"org\"";
  EXPECT_THAT(refusal([&] { push(options(hub)); }),
              ::testing::AllOf(HasSubstr("the token gives no right to write to it"),
                               HasSubstr("(You don't have the rights to create")));
  auto offline = options(hub);
  offline.settings.offline = true;
  const auto before = hub.hub_requests().size();
  EXPECT_THAT(refusal([&] { push(offline); }), HasSubstr("while HF_HUB_OFFLINE or"));
  EXPECT_EQ(hub.hub_requests().size(), before);
}

TEST_F(PushTest, NoHubIsOneLine) {
  PushHub hub;
  auto nobody = options(hub);
  nobody.settings.endpoint = "http://127.0.0.1:1";
  EXPECT_THAT(refusal([&] { push(nobody); }),
              HasSubstr("org/model: the Hub cannot be reached (http://127.0.0.1:1: Couldn't "));
  const TemporaryFolder empty;
  auto nothing = options(hub);
  nothing.folder = empty.path();
  EXPECT_THAT(refusal([&] { push(nothing); }), HasSubstr(": nothing to push in it"));
  nothing.folder = empty.path() / "none";
  EXPECT_THAT(refusal([&] { push(nothing); }), HasSubstr("none: expected a folder to push"));
}

}  // namespace
}  // namespace tessera::hub
