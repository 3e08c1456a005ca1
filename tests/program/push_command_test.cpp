// `tessera push`, and data sets by name, as a user runs them.
#include <gmock/gmock.h>

#include <string>

#include "tests/program/program.h"
#include "tests/support/push_hub.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using hub::testing::PushHub;
using hub::testing::TestHub;
using ::testing::HasSubstr;
using ::testing::Not;

class PushCommandTest : public testing::TemporaryFolderTest {
 protected:
  PushCommandTest() {
    files_.write("config.json", "{}");
    files_.write("model.safetensors", std::string(100'000, 'x'));
    files_.write(".secret", "mine");
  }
  static ProgramEnd push(const std::vector<std::string>& arguments, const std::string& endpoint,
                         const std::string& token = PushHub::kToken, bool offline = false) {
    std::vector<std::string> all{"push"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return run_tessera(all, {.environment = {{"HF_ENDPOINT", endpoint},
                                             {"HF_TOKEN", token},
                                             {"HF_HOME", "/nowhere"},
                                             {"HF_HUB_OFFLINE", offline ? "1" : ""}},
                             .input = ""});
  }

  const testing::TemporaryFolder files_;
  const std::string exported_ = files_.path().string();
};

TEST_F(PushCommandTest, SendsAFolderOnce) {
  PushHub hub;
  const auto first = push({exported_, "org/model", "--message=Better"}, hub.endpoint());
  EXPECT_EQ(first.exit_code, 0) << first.error;
  EXPECT_EQ(first.out.find("pushed 2 files to " + hub.endpoint() + "/org/model/commit/"), 0U);
  EXPECT_THAT(first.error, HasSubstr("made the model org/model\n"));
  EXPECT_THAT(first.error, HasSubstr("left out (hidden, half written"));
  EXPECT_THAT(first.error + first.out, Not(HasSubstr(PushHub::kToken)));
  EXPECT_EQ(hub.files().size(), 2U);
  EXPECT_EQ(hub.messages().back(), "Better");
  const auto second = push({exported_, "org/model"}, hub.endpoint());
  EXPECT_EQ(second.out, "org/model has all 2 files already\n") << second.error;
  EXPECT_EQ(push({exported_, "org/model", "--revision=next"}, hub.endpoint()).exit_code, 0);
}

TEST_F(PushCommandTest, Mistakes) {
  PushHub hub;
  const auto mistake = [&](const std::vector<std::string>& arguments, const std::string& line) {
    expect_mistake(push(arguments, hub.endpoint()), line);
  };
  mistake({exported_}, "NAME is required");
  mistake({exported_, "model"}, "expected a name on the Hugging Face Hub, org/name, got 'model'");
  mistake({exported_, "org/model@v2"}, "expected org/name; a branch is set by --revision");
  mistake({exported_, "org/model", "--revision=../x"}, "--revision: expected a branch");
  mistake({exported_, "org/model", "--repo-type=space"}, "--repo-type");
  mistake({exported_ + "/none", "org/model"}, "none: expected a folder to push");
  expect_mistake(push({exported_, "org/model"}, hub.endpoint(), ""),
                 "a push needs a token with write access");
  expect_mistake(push({exported_, "org/model"}, hub.endpoint(), "hf_wrong"),
                 "does not accept the token");
  expect_mistake(push({exported_, "org/model"}, hub.endpoint(), PushHub::kToken, true),
                 "HF_HUB_OFFLINE");
  EXPECT_TRUE(hub.files().empty());
}

TEST_F(PushCommandTest, ShowsADataSetByName) {
  const std::string row = R"({"text": "Hello there"})";
  TestHub hub({{"README.md", {"# Data"}},
               {"train.jsonl", {row + "\n" + row + "\n"}},
               {"test.jsonl", {row + "\n"}}});
  hub.is_dataset = true;
  const auto show = [&](const std::string& name) {
    return run_tessera(
        {"data", "show", name, "--model=tests/fixtures/tokenizers/qwen2_style", "--rows=0"},
        {.environment = {{"HF_ENDPOINT", hub.endpoint()}, {"HF_HUB_CACHE", folder_ / "hub"}},
         .input = ""});
  };
  EXPECT_THAT(show("org/model").out, HasSubstr("2 documents"));
  const auto test = show("org/model:test");
  EXPECT_THAT(test.out, HasSubstr("1 documents")) << test.error;
  expect_mistake(show("org/model:dev"), "expected one of its splits test, train, got 'dev'");
}

}  // namespace
}  // namespace tessera
