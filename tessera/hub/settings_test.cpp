#include "tessera/hub/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "tessera/base/digest.h"
#include "tessera/data/testing.h"
#include "tessera/hub/model_files.h"
#include "tessera/hub/repository_name.h"
#include "tests/support/temporary_folder.h"

namespace tessera::hub {
namespace {

using data::testing::refusal;
using tessera::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FromEnvironment : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HF_ENDPOINT", "HF_TOKEN",
                             "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
      ::unsetenv(name);
    }
    set("HOME", home_.path().string());
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

  const TemporaryFolder home_;
};

TEST_F(FromEnvironment, TheCacheIsWhereHuggingFaceHasIt) {
  EXPECT_EQ(settings_from_environment().cache, home_.path() / ".cache/huggingface/hub");
  set("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(settings_from_environment().cache, "/xdg/huggingface/hub");
  set("HF_HOME", "~/hf");
  EXPECT_EQ(settings_from_environment().cache, home_.path() / "hf/hub");
  set("HF_HUB_CACHE", "/cache");
  EXPECT_EQ(settings_from_environment().cache, "/cache");
}

TEST_F(FromEnvironment, TheTokenIsTheVariableElseTheFile) {
  EXPECT_EQ(settings_from_environment().token, "");
  home_.write(".cache/huggingface/token", "hf_file\n");
  EXPECT_EQ(settings_from_environment().token, "hf_file");
  set("HF_TOKEN_PATH", home_.write("other", " hf_other \n"));
  EXPECT_EQ(settings_from_environment().token, "hf_other");
  set("HF_TOKEN", "hf_variable");
  EXPECT_EQ(settings_from_environment().token, "hf_variable");
  set("HF_TOKEN", "hf\r\nX-Evil: 1");
  EXPECT_EQ(refusal([] { settings_from_environment(); }), "HF_TOKEN: expected a token of one word");
}

TEST_F(FromEnvironment, EndpointAndOffline) {
  EXPECT_EQ(settings_from_environment().endpoint, "https://huggingface.co");
  EXPECT_FALSE(settings_from_environment().offline);
  set("HF_ENDPOINT", "https://mirror/");
  EXPECT_EQ(settings_from_environment().endpoint, "https://mirror");
  set("HF_HUB_OFFLINE", "0");
  EXPECT_FALSE(settings_from_environment().offline);
  set("TRANSFORMERS_OFFLINE", "True");
  EXPECT_TRUE(settings_from_environment().offline);
}

TEST_F(FromEnvironment, WithoutAHomeTheCacheMustBeNamed) {
  ::unsetenv("HOME");
  EXPECT_THAT(refusal([] { settings_from_environment(); }), HasSubstr("set HF_HUB_CACHE"));
  set("HF_HUB_CACHE", "/cache");
  EXPECT_EQ(settings_from_environment().cache, "/cache");
}

TEST(RepositoryName, RepositoryAndRevision) {
  EXPECT_EQ(parse_repository_name("org/model")->revision, "main");
  EXPECT_EQ(parse_repository_name("org/Model-1.5_b@v1.0")->repository, "org/Model-1.5_b");
  EXPECT_EQ(parse_repository_name("org/model@v1.0")->text(), "org/model@v1.0");
  EXPECT_TRUE(is_commit("0123456789abcdef0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("main"));
}

TEST(WantedFiles, AdaptersAndTheirWeights) {
  EXPECT_THAT(
      wanted_files({"adapter_config.json", "adapter_model.safetensors", "a/config.json"}, true),
      ElementsAre("adapter_config.json", "adapter_model.safetensors"));
}

TEST(Sha256, OfTheStandardsExamples) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace tessera::hub
