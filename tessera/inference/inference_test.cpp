// What is asked and what is answered; greedy texts beside transformers' (tests/fixtures/families),
// on one rank and on several that divide the model.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/inference/session.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::inference {
namespace {

using Ids = std::vector<int64_t>;

TEST(Request, IsReadAsItWasWritten) {
  testing::TemporaryFolder folder;
  Request request{.task = Task::chat,
                  .model = "a folder \xff that is no UTF-8",
                  .dtype = FloatType::bf16,
                  .prompt = std::string("\0 and \n", 7),
                  .echo = true,
                  .max_new_tokens = 7,
                  .seed = ~uint64_t{0},
                  .stop = {"a", "\xfe"}};
  request.temperature = 0;
  request.top_k = 3;
  const auto path = folder.write("request", to_bytes(request));
  EXPECT_EQ(read_request(path), request);
  EXPECT_EQ(read_request(folder.write("plain", to_bytes({}))), Request{});
}

class SettingsTest : public ::testing::Test {
 protected:
  Settings settings(const std::string& generation_config, const Request& request = {}) {
    folder_.write("generation_config.json", generation_config);
    return settings_of(request, folder_.path());
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_F(SettingsTest, TheRequestGoesBeforeTheModelsOwn) {
  const auto own = settings(
      R"({"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": null, "eos_token_id": [3, 4]})");
  EXPECT_EQ(own.sampling.temperature, 0.6);
  EXPECT_EQ(own.sampling.top_p, 0.9);
  EXPECT_EQ(own.sampling.top_k, 20);
  EXPECT_EQ(own.sampling.min_p, 0);
  EXPECT_EQ(own.end_tokens, (Ids{3, 4}));
  Request request;
  request.temperature = 0.1;
  request.top_k = 0;
  const auto asked = settings(R"({"temperature": 0.6, "top_k": 20, "eos_token_id": 5})", request);
  EXPECT_EQ(asked.sampling.temperature, 0.1);
  EXPECT_EQ(asked.sampling.top_k, 0);
  EXPECT_EQ(asked.end_tokens, Ids{5});
}

TEST_F(SettingsTest, DoSample) {
  EXPECT_EQ(settings("{}").sampling.temperature, 0.7);
  EXPECT_EQ(settings(R"({"do_sample": true})").sampling.temperature, 1);
  EXPECT_EQ(settings(R"({"do_sample": false, "temperature": 0.6})").sampling.temperature, 0);
  Request request;
  request.temperature = 0.5;
  EXPECT_EQ(settings(R"({"do_sample": false})", request).sampling.temperature, 0.5);
}

TEST_F(SettingsTest, WrongValuesAreNamed) {
  for (const auto* wrong : {R"({"temperature": "hot"})", R"({"top_p": 1.5})", R"({"top_k": -1})",
                            R"({"eos_token_id": ["a"]})", R"({"do_sample": 1})", "[]", "{"}) {
    EXPECT_THROW(settings(wrong), UserError) << wrong;
  }
}

class FamilySessionTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(FamilySessionTest, GreedyTokensEqualTransformers) {
  const auto& [name, ranks] = GetParam();
  on_mesh({.shape = {.tp = ranks}}, [&, family = name](const mesh::DeviceMesh& mesh) {
    const auto all =
        nlohmann::json::parse(read_file("tests/fixtures/families/generated.json"))["greedy"];
    const auto ids = all[family]["ids"].get<Ids>();
    Request request{.model = "tests/fixtures/families/" + family,
                    .max_new_tokens = std::ssize(ids)};
    request.temperature = 0;
    Session session(request, mesh);
    const auto prompt = all[family]["prompt"].get<Ids>();
    const auto answer = session.go_on(prompt, [](const auto&) { return true; });
    EXPECT_EQ(answer.tokens, ids);
    EXPECT_EQ(answer.prompt_tokens, std::ssize(prompt));
  });
}
INSTANTIATE_TEST_SUITE_P(Some, FamilySessionTest,
                         ::testing::Combine(::testing::Values("llama_3", "qwen2", "mistral", "phi3",
                                                              "gemma2"),
                                            ::testing::Values(1, 2)),
                         [](const auto& given) {
                           return std::get<0>(given.param) + "_" +
                                  std::to_string(std::get<1>(given.param));
                         });

}  // namespace
}  // namespace tessera::inference
