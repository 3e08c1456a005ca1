// Against a Hub of our own on this machine.
#include "tessera/hub/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <thread>

#include "tessera/base/digest.h"
#include "tessera/base/file.h"
#include "tessera/data/testing.h"
#include "tests/support/http_server.h"
#include "tests/support/temporary_folder.h"

extern char** environ;

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using tessera::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HubFile;
using testing::TestHub;

const std::string kWeights = [] {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i) + ",";
  return text;
}();

std::map<std::string, HubFile> model_of_one_file() {
  return {{"config.json", {R"({"model_type": "llama"})"}},
          {"tokenizer.json", {"{}"}},
          {"README.md", {"# Model"}},
          {"pytorch_model.bin", {"pickle", true}},
          {"onnx/model.safetensors", {"other", true}},
          {"consolidated.safetensors", {"twice", true}},
          {"model.safetensors", {kWeights, true}}};
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

class Resolve : public ::testing::Test {
 protected:
  ResolveOptions options(const TestHub& hub) const {
    return {.settings = {.cache = cache_,
                         .endpoint = hub.endpoint(),
                         .connect_seconds = 2,
                         .stall_seconds = 1,
                         .max_attempts = 3,
                         .retry_seconds = 0.01}};
  }
  fs::path model() const { return cache_ / "models--org--model"; }
  fs::path snapshot() const { return model() / "snapshots" / TestHub::kCommit; }
  fs::path partial() const { return model() / "blobs" / (sha256(kWeights) + ".incomplete"); }
  static std::string refused(const std::string& name, const ResolveOptions& options) {
    return refusal([&] { resolve(name, options); });
  }

  const TemporaryFolder folder_;
  const fs::path cache_ = folder_.path() / "hub";
};

TEST_F(Resolve, AFolderIsTakenAsItIs) {
  const ResolveOptions offline{.settings = {.offline = true}};
  EXPECT_EQ(resolve(folder_.path().string(), offline), folder_.path());
}

TEST_F(Resolve, DownloadsIntoTheLayoutOfHuggingFace) {
  TestHub hub(model_of_one_file());
  std::vector<Progress> progress;
  auto with_progress = options(hub);
  with_progress.on_progress = [&](const Progress& p) { progress.push_back(p); };
  EXPECT_EQ(resolve("org/model", with_progress), snapshot());
  EXPECT_THAT(names_in(cache_), ElementsAre(".locks", "models--org--model"));
  EXPECT_THAT(names_in(snapshot()),
              ElementsAre("config.json", "model.safetensors", "tokenizer.json"));
  EXPECT_EQ(fs::read_symlink(snapshot() / "model.safetensors"), "../../blobs/" + sha256(kWeights));
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), kWeights);
  EXPECT_EQ(read_file(snapshot() / "config.json"), R"({"model_type": "llama"})");
  EXPECT_EQ(read_file(model() / "refs/main"), TestHub::kCommit);
  EXPECT_EQ(names_in(model() / "blobs").size(), 3U);
  EXPECT_TRUE(fs::exists(cache_ / ".locks/models--org--model" / (sha256(kWeights) + ".lock")));
  ASSERT_FALSE(progress.empty());
  const auto total = static_cast<int64_t>(kWeights.size() + 23 + 2);
  EXPECT_EQ(progress.back().done_bytes, total);
  EXPECT_EQ(progress.back().total_bytes, total);
}

TEST_F(Resolve, WhatIsThereCostsOneRequest) {
  TestHub hub(model_of_one_file());
  resolve("org/model", options(hub));
  const auto before = hub.hub_requests().size() + hub.cdn_requests().size();
  resolve("org/model", options(hub));
  EXPECT_EQ(hub.hub_requests().size() + hub.cdn_requests().size(), before + 1);
}

TEST_F(Resolve, WithoutWeightsIsWithoutWeights) {
  TestHub hub(model_of_one_file());
  auto without = options(hub);
  without.weights = false;
  resolve("org/model", without);
  EXPECT_THAT(names_in(snapshot()), ElementsAre("config.json", "tokenizer.json"));
  without.settings.offline = true;
  EXPECT_EQ(resolve("org/model", without), snapshot());
  without.weights = true;
  EXPECT_THAT(refused("org/model", without),
              HasSubstr("org/model: model.safetensors is missing from "));
}

TEST_F(Resolve, ShardsComeWithTheirIndex) {
  TestHub hub(
      {{"config.json", {"{}"}},
       {"model.safetensors.index.json", {R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                                    "b": "model-00002-of-00002.safetensors"}})"}},
       {"model-00001-of-00002.safetensors", {"first", true}},
       {"model-00002-of-00002.safetensors", {"second", true}},
       {"consolidated.safetensors", {"twice", true}}});
  resolve("org/model", options(hub));
  EXPECT_EQ(names_in(snapshot()).size(), 4U);
  auto offline = options(hub);
  offline.settings.offline = true;
  EXPECT_EQ(resolve("org/model", offline), snapshot());
  fs::remove(snapshot() / "model-00002-of-00002.safetensors");
  EXPECT_THAT(refused("org/model", offline),
              HasSubstr("org/model: model-00002-of-00002.safetensors is missing from "));
}

TEST_F(Resolve, OtherRevisions) {
  TestHub hub(model_of_one_file());
  EXPECT_EQ(resolve("org/model@refs/pr/1", options(hub)), snapshot());
  EXPECT_EQ(read_file(model() / "refs/refs/pr/1"), TestHub::kCommit);
  const auto commit = std::string("org/model@") + TestHub::kCommit;
  EXPECT_EQ(resolve(commit, options(hub)), snapshot());
  EXPECT_THAT(names_in(model() / "refs"), ElementsAre("refs"));  // a commit needs none
  auto offline = options(hub);
  offline.settings.offline = true;
  EXPECT_EQ(resolve(commit, offline), snapshot());
}

TEST_F(Resolve, TheTokenGoesToTheHubAlone) {
  TestHub hub(model_of_one_file());
  hub.needed_token = "hf_secret";
  auto with_token = options(hub);
  with_token.settings.token = "hf_secret";
  resolve("org/model", with_token);
  EXPECT_FALSE(hub.cdn_requests().empty());
  for (const auto& request : hub.cdn_requests()) EXPECT_EQ(request.header("authorization"), "");
  for (const auto& request : hub.hub_requests()) {
    EXPECT_EQ(request.header("authorization"), "Bearer hf_secret");
  }
}

TEST_F(Resolve, ABrokenConnectionIsContinued) {
  TestHub hub(model_of_one_file());
  hub.breaks = 4;  // more than attempts without progress
  hub.breaks_after = 100'000;
  resolve("org/model", options(hub));
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), kWeights);
  std::vector<std::string> ranges;
  for (const auto& request : hub.cdn_requests()) ranges.push_back(request.header("range"));
  EXPECT_THAT(ranges,
              ElementsAre("", "bytes=100000-", "bytes=200000-", "bytes=300000-", "bytes=400000-"));
}

TEST_F(Resolve, AStalledConnectionIsContinued) {
  TestHub hub(model_of_one_file());
  hub.breaks = 1;
  hub.breaks_after = 1000;
  hub.stalls = true;
  resolve("org/model", options(hub));
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), kWeights);
}

TEST_F(Resolve, WhatAnEarlierProcessLeftIsContinued) {
  TestHub hub(model_of_one_file());
  fs::create_directories(partial().parent_path());
  write_file(partial(), kWeights.substr(0, 12'345));
  resolve("org/model", options(hub));
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), kWeights);
  ASSERT_EQ(hub.cdn_requests().size(), 1U);
  EXPECT_EQ(hub.cdn_requests()[0].header("range"), "bytes=12345-");
  EXPECT_FALSE(fs::exists(partial()));
}

TEST_F(Resolve, AServerWithoutRangesBeginsAgain) {
  TestHub hub(model_of_one_file());
  hub.knows_ranges = false;
  fs::create_directories(partial().parent_path());
  write_file(partial(), std::string(12'345, 'x'));
  resolve("org/model", options(hub));
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), kWeights);
}

TEST_F(Resolve, AServerThatNeverGetsFurtherIsGivenUp) {
  TestHub hub(model_of_one_file());
  hub.knows_ranges = false;
  hub.breaks = 1000;
  hub.breaks_after = 1000;
  EXPECT_THAT(refused("org/model", options(hub)), HasSubstr("the Hub cannot be reached"));
  EXPECT_EQ(hub.cdn_requests().size(), 3U);
}

TEST_F(Resolve, OtherContentThanAnnouncedIsRefused) {
  TestHub hub(model_of_one_file());
  auto damaged = kWeights;
  damaged[777] = '!';
  hub.served_instead["model.safetensors"] = damaged;
  EXPECT_THAT(refused("org/model", options(hub)),
              HasSubstr("model.safetensors: expected content with SHA-256 "));
  EXPECT_FALSE(fs::exists(partial()));
  EXPECT_FALSE(fs::exists(snapshot() / "model.safetensors"));
  EXPECT_FALSE(fs::exists(model() / "refs/main"));

  hub.served_instead["model.safetensors"] = kWeights + "more";
  EXPECT_THAT(refused("org/model", options(hub)), HasSubstr("more than the"));
  hub.served_instead.clear();
  resolve("org/model", options(hub));
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), kWeights);
}

TEST_F(Resolve, AFileWithoutASizeIsCheckedAndLimited) {
  TestHub hub(model_of_one_file());
  hub.tells_sizes = false;
  hub.small_breaks_after = 1;
  EXPECT_THAT(refused("org/model", options(hub)), HasSubstr(": expected content with Git's name "));
  EXPECT_FALSE(fs::exists(snapshot() / "config.json"));
  hub.small_breaks_after = -1;
  resolve("org/model", options(hub));
  EXPECT_TRUE(fs::exists(snapshot() / "config.json"));
}

TEST_F(Resolve, AFileWithoutASizeThatDoesNotEndIsCutOff) {
  TestHub hub({{"config.json", {std::string((64 << 20) + 1, ' ')}},
               {"model.safetensors", {kWeights, true}}});
  hub.tells_sizes = false;
  auto patient = options(hub);
  patient.settings.stall_seconds = 20;  // a busy machine makes so much wait
  EXPECT_THAT(refused("org/model", patient), HasSubstr("no size for it and sends more than 64"));
  EXPECT_FALSE(fs::exists(snapshot() / "config.json"));
}

TEST_F(Resolve, AFileWithoutSizeAndHashIsRefused) {
  TestHub hub(model_of_one_file());
  hub.tells_sizes = false;
  hub.etag = "some-words";
  EXPECT_THAT(refused("org/model", options(hub)), HasSubstr("tells neither its size nor its hash"));
}

TEST_F(Resolve, NoErrorShowsAPassword) {
  TestHub hub(model_of_one_file());
  const auto with_user = [&](const char* error_code) {
    hub.error_code = error_code;
    auto secret = options(hub);
    secret.settings.endpoint.insert(std::string_view("http://").size(), "me:pass@");
    const auto line = refused("org/model", secret);
    EXPECT_EQ(line.find("pass"), std::string::npos) << line;
    return line;
  };
  for (const char* code : {"RepoNotFound", "RevisionNotFound", "GatedRepo", "Other"})
    with_user(code);
  EXPECT_THAT(refused("org/model", {.settings = {.cache = cache_, .endpoint = "ftp://me:pass@h"}}),
              HasSubstr("got 'ftp://(hidden)@h'"));
}

TEST_F(Resolve, AnOverloadedHubIsAskedAgain) {
  TestHub hub(model_of_one_file());
  hub.unavailable = 2;
  EXPECT_EQ(resolve("org/model", options(hub)), snapshot());
  hub.unavailable = 3;
  std::vector<std::string> notices;
  auto with_notice = options(hub);
  with_notice.on_notice = [&](const std::string& line) { notices.push_back(line); };
  EXPECT_EQ(resolve("org/model", with_notice), snapshot());  // the cached one
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_THAT(notices[0], HasSubstr("answers with status 503); using "));
}

TEST_F(Resolve, RefusalsOfTheHubAreOneLine) {
  TestHub hub(model_of_one_file());
  fs::create_directories(cache_ / "models--org--modle");
  EXPECT_THAT(refused("org/mode", options(hub)),
              HasSubstr("org/mode: no such folder, and no such model at http://127.0.0.1:"));
  EXPECT_THAT(refused("org/modl", options(hub)), HasSubstr("; did you mean 'org/modle'?"));
  resolve("org/model", options(hub));
  EXPECT_THAT(refused("org/model@mian", options(hub)),
              HasSubstr(" knows no revision 'mian' of it; did you mean 'main'?"));
  hub.needed_token = "hf_secret";
  EXPECT_THAT(refused("org/model", options(hub)), HasSubstr("or one that needs HF_TOKEN"));
  auto with_token = options(hub);
  with_token.settings.token = "hf_old";
  EXPECT_THAT(refused("org/model", with_token), HasSubstr("does not accept the token"));
  hub.error_code = "GatedRepo";
  hub.error_status = 403;
  EXPECT_THAT(refused("org/model", options(hub)), HasSubstr("accept their terms at "));
  hub.error_code = "Other";
  EXPECT_THAT(refused("org/model", options(hub)), HasSubstr("refuses access (status 403)"));
}

TEST_F(Resolve, AModelWithoutSafetensorsIsRefused) {
  TestHub hub({{"config.json", {"{}"}}, {"pytorch_model.bin", {"pickle", true}}});
  EXPECT_THAT(refused("org/model", options(hub)),
              HasSubstr("expected weights as .safetensors among its 2 files, got none"));
}

TEST_F(Resolve, OfflineAsksNobody) {
  TestHub hub(model_of_one_file());
  auto offline = options(hub);
  offline.settings.offline = true;
  EXPECT_THAT(refused("org/model", offline),
              HasSubstr("not in the cache " + cache_.string() + ", and HF_HUB_OFFLINE or"));
  EXPECT_TRUE(hub.hub_requests().empty());
  resolve("org/model", options(hub));
  const auto before = hub.hub_requests().size();
  EXPECT_EQ(resolve("org/model", offline), snapshot());
  EXPECT_THAT(refused("org/model@mian", offline), HasSubstr("did you mean 'main'?"));
  EXPECT_EQ(hub.hub_requests().size(), before);
}

TEST_F(Resolve, NoNetworkIsOneLine) {
  const ResolveOptions nobody{.settings = {.cache = cache_,
                                           .endpoint = "http://127.0.0.1:1",
                                           .max_attempts = 2,
                                           .retry_seconds = 0.01}};
  EXPECT_THAT(refused("org/model", nobody),
              HasSubstr("and the Hub cannot be reached (http://127.0.0.1:1: Couldn't connect"));
  EXPECT_THAT(refused("org/model", {.settings = {.cache = cache_, .endpoint = "huggingface.co"}}),
              HasSubstr("HF_ENDPOINT: expected http://host or https://host"));
}

TEST_F(Resolve, WhatIsNoNameIsRefused) {
  for (const std::string name : {"gpt2", "/no/such/folder", "./out", "a/b/c", "../a", "org/..",
                                 "org/model@", "org/model@../x", "org/-x", "org/a b", "org/a--b"}) {
    EXPECT_THAT(refused(name, {}), HasSubstr("'" + name + "': no such folder; expected one, or a "))
        << name;
  }
}

TEST_F(Resolve, ThreadsDownloadEachContentOnce) {
  TestHub hub(model_of_one_file());
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] { EXPECT_EQ(resolve("org/model", options(hub)), snapshot()); });
    }
  }
  EXPECT_EQ(hub.num_bodies(), 3U);
}

TEST_F(Resolve, ProcessesDownloadEachContentOnce) {
  TestHub hub(model_of_one_file());
  std::vector<std::string> variables = {"TESSERA_TEST_RESOLVE=1", "HF_ENDPOINT=" + hub.endpoint(),
                                        "HF_HUB_CACHE=" + cache_.string(), "HF_TOKEN=hf_secret"};
  std::vector<char*> environment;
  for (auto& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::vector<std::string> arguments = {"test", "--gtest_brief=1",
                                        "--gtest_filter=InAnotherProcess.Resolves"};
  char* const argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  std::vector<pid_t> processes(3);
  for (auto& process : processes) {
    ASSERT_EQ(::posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, argv, environment.data()),
              0);
  }
  for (const pid_t process : processes) {
    int status = -1;
    ::waitpid(process, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(hub.num_bodies(), 3U);
  EXPECT_EQ(hub.hub_requests()[0].header("authorization"), "Bearer hf_secret");
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), kWeights);
}

TEST(InAnotherProcess, Resolves) {
  if (std::getenv("TESSERA_TEST_RESOLVE") == nullptr) GTEST_SKIP() << "started by the test above";
  EXPECT_TRUE(fs::exists(resolve("org/model") / "model.safetensors"));
}

}  // namespace
}  // namespace tessera::hub
