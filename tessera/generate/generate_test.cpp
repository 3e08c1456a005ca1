// Greedy continuations and sampling beside what transformers computed
// (tests/fixtures/families/generate.py), and each part by itself.
#include "tessera/generate/generate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/generate/codec.h"
#include "tessera/models/hf_config.h"
#include "tessera/nn/router.h"

namespace tessera::generate {
namespace {

using Ids = std::vector<int64_t>;

const nlohmann::json& generated() {
  static const auto json =
      nlohmann::json::parse(read_file("tests/fixtures/families/generated.json"));
  return json;
}

std::string folder_of(const std::string& name) {
  const std::string family = "tests/fixtures/families/" + name;
  return std::filesystem::exists(family) ? family : "tests/fixtures/" + name;
}

std::shared_ptr<models::LanguageModel> model_of(const std::string& name) {
  auto model =
      models::make_language_model(models::read_model_shape(folder_of(name) + "/config.json"));
  checkpoint::load_pretrained(*model, folder_of(name));
  const checkpoint::SafetensorsFile file(folder_of(name) + "/model.safetensors");
  for (const auto& item : model->named_modules()) {
    auto* router = dynamic_cast<nn::RouterImpl*>(item.value().get());
    if (router == nullptr || !router->options().selection_bias) continue;
    router->selection_bias = checkpoint::read_tensor(file, item.key() + ".e_score_correction_bias");
  }
  return model;
}

class FamilyGenerateTest : public ::testing::TestWithParam<std::string> {
 protected:
  const nlohmann::json expected_ = generated()["greedy"][GetParam()];
  const Ids prompt_ = expected_["prompt"].get<Ids>(), ids_ = expected_["ids"].get<Ids>();

  Ids all() const {
    auto tokens = prompt_;
    tokens.insert(tokens.end(), ids_.begin(), ids_.end());
    return tokens;
  }
};

TEST_P(FamilyGenerateTest, GreedyTokensEqualTransformers) {
  const auto model = model_of(GetParam());
  CachedModel cached(*model);
  const auto ids = generate([&](auto tokens) { return cached(tokens); }, prompt_,
                            {.max_new_tokens = std::ssize(ids_), .sampling = {.temperature = 0}});
  EXPECT_EQ(ids, ids_);
}

/// Token by token, in chunks, and after going back: as one forward over the whole text.
TEST_P(FamilyGenerateTest, CachedEqualsComputedAnew) {
  const auto model = model_of(GetParam());
  const auto& scaling = model->shape().rope_scaling;
  auto tokens = all();
  if (scaling && (scaling->type == models::RopeScalingType::dynamic ||
                  scaling->type == models::RopeScalingType::longrope)) {
    tokens.resize(static_cast<size_t>(scaling->original_max_seq_len));  // angles are constant
  }
  const torch::NoGradGuard no_grad;
  const auto expected = model->logits(torch::tensor(tokens).unsqueeze(0)).squeeze(0);
  const std::span<const int64_t> text(tokens);
  CachedModel cached(*model);
  const auto compare = [&](int64_t length) {
    const auto logits = cached(text.first(static_cast<size_t>(length)));
    EXPECT_LT((logits - expected[length - 1]).abs().max().item<double>(), 1e-5) << length;
  };
  for (int64_t length = 1; length <= std::ssize(tokens); ++length) compare(length);
  compare(std::ssize(tokens) / 2);
  compare(std::ssize(tokens));
  cached.chunk = 3;
  compare(2);
  compare(std::ssize(tokens));
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const auto& item : generated()["greedy"].items()) names.push_back(item.key());
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, FamilyGenerateTest, ::testing::ValuesIn(family_names()),
                         [](const auto& family) { return family.param; });

TEST(CachedModel, LeavesTheModelAsItWas) {
  const auto model = model_of("mistral");
  const torch::NoGradGuard no_grad;
  const auto ids = torch::arange(20).unsqueeze(0);
  const auto before = model->logits(ids);
  {
    CachedModel cached(*model);
    cached(Ids{1, 2, 3});
  }
  EXPECT_TRUE(torch::equal(model->logits(ids), before));
}

TEST(CachedModel, RefusesMorePositionsThanTheModelHas) {
  const auto model = model_of("gpt2_micro");
  CachedModel cached(*model);
  EXPECT_THROW(cached(Ids(static_cast<size_t>(model->shape().max_seq_len) + 1)), c10::ValueError);
  EXPECT_THROW(cached(Ids()), c10::ValueError);
}

SamplingOptions options_of(const nlohmann::json& json) {
  return {.repetition_penalty = json.value("repetition_penalty", 1.0),
          .temperature = json.value("temperature", 1.0),
          .top_k = json.value("top_k", int64_t{0}),
          .top_p = json.value("top_p", 1.0),
          .min_p = json.value("min_p", 0.0)};
}

TEST(Sampling, ProbabilitiesEqualTransformers) {
  for (const auto& item : generated()["sampling"]) {
    const auto logits = item["logits"].get<std::vector<float>>();
    const auto expected = item["probabilities"].get<std::vector<double>>();
    const auto found =
        probabilities(logits, item["tokens"].get<Ids>(), options_of(item["options"]));
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-6) << item["options"] << ", token " << i;
      EXPECT_EQ(found[i] == 0, expected[i] == 0) << item["options"] << ", token " << i;
    }
  }
}

TEST(Sampling, DrawsByProbabilityAndIsAFunctionOfSeedAndPosition) {
  const std::vector<float> logits{0.5F, -1.0F, 1.5F, 0.0F};
  const SamplingOptions options{.top_k = 3, .seed = 5};
  const auto expected = probabilities(logits, {}, options);
  std::vector<double> counts(logits.size());
  constexpr int kDraws = 20000;
  Ids tokens;
  for (int i = 0; i < kDraws; ++i) {
    tokens.assign(static_cast<size_t>(i % 2000), 0);
    auto each = options;
    each.seed += static_cast<uint64_t>(i / 2000);
    counts[static_cast<size_t>(sample(logits, tokens, each))] += 1.0 / kDraws;
    ASSERT_EQ(sample(logits, tokens, each), sample(logits, tokens, each));
  }
  for (size_t i = 0; i < counts.size(); ++i) EXPECT_NEAR(counts[i], expected[i], 0.015);
}

TEST(Sampling, RefusesWhatIsNoNumber) {
  const std::vector<float> logits{0, std::nanf("")};
  EXPECT_THROW(sample(logits, {}, {}), UserError);
  EXPECT_THROW(sample(logits, {}, {.temperature = 0}), UserError);
}

TEST(Generate, EndsAtAnEndTokenAndWhereItIsTold) {
  const NextLogits counts = [](std::span<const int64_t> tokens) {
    return torch::one_hot(torch::tensor(tokens.back() + 1), 20).to(torch::kFloat);
  };
  Ids heard;
  GenerateOptions options{.max_new_tokens = 5, .sampling = {.temperature = 0}, .end_tokens = {}};
  options.on_token = [&](int64_t token) { return heard.push_back(token), token != 7; };
  EXPECT_EQ(generate(counts, {0}, options), (Ids{1, 2, 3, 4, 5}));
  EXPECT_EQ(generate(counts, {5}, options), (Ids{6, 7}));
  options.end_tokens = {9, 6};
  heard.clear();
  EXPECT_EQ(generate(counts, {4}, options), (Ids{5, 6}));
  EXPECT_EQ(heard, (Ids{5}));
}

TEST(StopWords, ShowsNothingOfThemHoweverTheTextIsCut) {
  const std::string text = "ababac END? EN";
  for (size_t size = 1; size <= text.size(); ++size) {
    StopWords never({"END!", "x", ""}), stops({"abac", "END"});
    std::string all, some;
    for (size_t at = 0; at < text.size(); at += size) {
      all += never.push(text.substr(at, size));
      some += stops.push(text.substr(at, size));
    }
    EXPECT_FALSE(never.found());
    EXPECT_EQ(all, "ababac END? ") << size;
    EXPECT_EQ(all + never.finish(), text);
    EXPECT_TRUE(stops.found());
    EXPECT_EQ(some + stops.finish(), "ab") << size;
  }
}

TEST(Codec, BytesAreTokensFrom0To255) {
  const Codec codec(nullptr, 256);
  EXPECT_EQ(codec.encode_plain("a\xc3\xa9"), (std::vector<int64_t>{97, 195, 169}));
  EXPECT_EQ(codec.encode("a\xc3\xa9"), codec.encode_plain("a\xc3\xa9"));
  EXPECT_TRUE(codec.encode_plain("").empty());
}

}  // namespace
}  // namespace tessera::generate
