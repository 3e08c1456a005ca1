// What is asked and what is answered; greedy texts beside transformers' (tests/fixtures/families),
// on one rank and on several that divide the model.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/bitsandbytes.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/inference/export_quantised.h"
#include "tessera/inference/scores.h"
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

TEST_F(SettingsTest, WhatIsNotDoneIsSaid) {
  EXPECT_EQ(
      settings(R"({"num_beams": 1, "bad_words_ids": null, "min_length": 0, "top_k": 3})").note, "");
  EXPECT_THAT(
      settings(R"({"num_beams": 4, "suppress_tokens": [7]})").note,
      ::testing::HasSubstr("generation_config.json: not done: num_beams, suppress_tokens;"));
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

/// The same on every rank.
void expected_alike(const mesh::DeviceMesh& mesh, const std::vector<Score>& scores) {
  std::string told;
  for (const auto& score : scores)
    told += fmt::format("{} {};", score.log_probability, score.num_tokens);
  for (const auto& other : mesh.world().all_gather_bytes(told)) EXPECT_EQ(other, told);
  EXPECT_LT(scores.front().log_probability, 0);
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

TEST(Session, NamesStoredTensorsThatHaveNoPlaceInTheModel) {
  const std::filesystem::path source = "tests/fixtures/families/llama_3";
  const testing::TemporaryFolder folder;
  const checkpoint::SafetensorsFile stored(source / "model.safetensors");
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& name : stored.names()) tensors[name] = checkpoint::read_tensor(stored, name);
  tensors["model.layers.0.self_attn.q_norm.weight"] = torch::ones({8});
  checkpoint::save_safetensors(folder.path() / "model.safetensors", tensors);
  std::filesystem::copy(source / "config.json", folder.path());
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    EXPECT_EQ(load_model({.source = source}, FloatType::fp32, mesh).note, "");
    EXPECT_THAT(load_model({.source = folder.path()}, FloatType::fp32, mesh).note,
                ::testing::HasSubstr("it: model.layers.0.self_attn.q_norm.weight (1 of "));
  });
}

/// Beside log-softmax of whole logits, text by text.
TEST(Scores, AreThoseOfEachPassageAlone) {
  for (const auto* family : {"llama_3", "gemma2", "phi3", "llama_dynamic"}) {
    for (const int ranks : {1, 2}) {
      on_mesh({.shape = {.tp = ranks}}, [&](const mesh::DeviceMesh& mesh) {
        const auto stored = load_model({.source = std::string("tests/fixtures/families/") + family},
                                       FloatType::fp32, mesh);
        std::vector<Passage> passages;
        for (int64_t length = 2; length < 40; length += 5) {
          Passage passage;
          for (int64_t i = 0; i < length; ++i) {
            passage.tokens.push_back((i * 37 + length) % stored.model->shape().vocab_size);
            passage.scored.push_back(i % 3 != 0);
          }
          passages.push_back(passage);
        }
        const auto scores = scores_of(*stored.model, passages);
        if (ranks > 1) {  // divided logits are no logits
          expected_alike(mesh, scores);
          return;
        }
        const torch::NoGradGuard no_grad;
        for (size_t p = 0; p < passages.size(); ++p) {
          const auto& [tokens, scored] = passages[p];
          // What is read: lengths by which angles turn do not count what is predicted last.
          const std::vector<int64_t> inputs(tokens.begin(), tokens.end() - 1);
          const auto logits = stored.model->logits(torch::tensor(inputs).unsqueeze(0))[0]
                                  .to(torch::kDouble)
                                  .log_softmax(-1);
          double sum = 0;
          int64_t count = 0;
          for (size_t i = 1; i < tokens.size(); ++i) {
            if (!scored[i]) continue;
            sum += logits[static_cast<int64_t>(i) - 1][tokens[i]].item<double>();
            ++count;
          }
          EXPECT_EQ(scores[p].num_tokens, count);
          EXPECT_NEAR(scores[p].log_probability, sum, 1e-5 * std::abs(sum)) << family << " " << p;
        }
      });
    }
  }
}

TEST(Windows, ScoreEachTokenOnceBehindAsManyAsFit) {
  std::vector<int64_t> tokens(23);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<bool> all(tokens.size(), true);
  for (const int64_t seq_len : {1, 2, 5, 22, 40}) {
    for (int64_t stride = 1; stride <= seq_len; ++stride) {
      std::vector<int64_t> scored;
      for (const auto& passage : windows(tokens, all, seq_len, stride)) {
        ASSERT_LE(std::ssize(passage.tokens), seq_len + 1);
        ASSERT_FALSE(passage.scored[0]);
        for (size_t i = 1; i < passage.tokens.size(); ++i) {
          if (!passage.scored[i]) continue;
          scored.push_back(passage.tokens[i]);
          const auto before = static_cast<int64_t>(i);
          EXPECT_GE(before, std::min(passage.tokens[i], seq_len - stride))
              << seq_len << " " << stride;
        }
      }
      EXPECT_EQ(scored, std::vector<int64_t>(tokens.begin() + 1, tokens.end()));
    }
  }
  EXPECT_TRUE(windows(std::vector<int64_t>{1}, {true}, 4, 2).empty());
}

// A folder that bitsandbytes quantised, exported again: its codes, which it reads back as the same values.
TEST(ExportQuantised, HasTheCodesAndIsReadBack) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path source = "tests/fixtures/bitsandbytes/nf4_double";
  for (const auto weights : {WeightFormat::nf4, WeightFormat::nf4_double, WeightFormat::int8}) {
    const auto name = std::string(text_of(weights));
    SCOPED_TRACE(name);
    const auto written = folder.path() / name;
    export_quantised(
        {.task = Task::quantise, .model = source, .other = written, .weights = weights});
    const checkpoint::Safetensors before(source), after(written);
    const auto read_back = checkpoint::open_safetensors(written);
    const auto expected = checkpoint::open_safetensors(source);
    int64_t num_quantised = 0;
    for (const auto& [tensor, info] : expected->tensors()) {
      const auto value = checkpoint::read_tensor(*expected, tensor);
      const auto back = checkpoint::read_tensor(*read_back, tensor);
      if (before.info(tensor).dtype != checkpoint::DType::u8) {
        EXPECT_TRUE(back.equal(value)) << tensor;
        continue;
      }
      ++num_quantised;
      // Of absmax in 8 bits and of int8: within their rounding.
      const double most = value.abs().max().item<double>();
      const double allowed = weights == WeightFormat::nf4 ? 0 : most / 100;
      EXPECT_LE((back - value).abs().max().item<double>(), allowed) << tensor;
      if (weights == WeightFormat::int8) continue;
      EXPECT_TRUE(
          checkpoint::read_tensor(after, tensor).equal(checkpoint::read_tensor(before, tensor)))
          << tensor;
    }
    EXPECT_EQ(num_quantised, 14);
    const auto config = nlohmann::json::parse(read_file(written / "config.json"));
    EXPECT_EQ(config["quantization_config"]["load_in_8bit"], weights == WeightFormat::int8);
  }
  for (const char* model : {"tests/fixtures/gpt2_micro", "tests/fixtures/mixtral_micro"}) {
    EXPECT_THROW(export_quantised({.task = Task::quantise,
                                   .model = model,
                                   .other = folder.path() / "refused",
                                   .weights = WeightFormat::nf4}),
                 UserError);
  }
}

}  // namespace
}  // namespace tessera::inference
