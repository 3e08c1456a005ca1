// Every family of models against what transformers computed (tests/fixtures/families/make.py):
// logits, loss and gradients in fp32.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "tessera/checkpoint/formats/convert.h"
#include "tessera/checkpoint/formats/family_names.h"
#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/models/bert/modules.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/router.h"
#include "tessera/train/balance.h"

namespace tessera {
namespace {

double largest_difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

class FamilyParityTest : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string folder_ = "tests/fixtures/families/" + GetParam();
  const checkpoint::SafetensorsFile expected_{folder_ + "/expected.safetensors"};
  const torch::Tensor ids_ = checkpoint::read_tensor(expected_, "input_ids");

  const checkpoint::FamilyNames names_{
      models::read_json_object(folder_ + "/config.json", "model_type"), folder_};

  std::shared_ptr<models::LanguageModel> model() const {
    auto model = models::make_language_model(models::read_model_shape(folder_ + "/config.json"));
    checkpoint::load_pretrained(*model, folder_);
    const checkpoint::Pretrained stored(*model, folder_);
    EXPECT_EQ(stored.note_of_unread(), "");
    train::take_selection_biases(train::routers_of(*model), stored, torch::kCPU);
    return model;
  }
};

TEST_P(FamilyParityTest, HasTheParametersOfTheFile) {
  const auto shape = models::read_model_shape(folder_ + "/config.json");
  int64_t elements = 0;
  const checkpoint::SafetensorsFile stored(folder_ + "/model.safetensors");
  size_t parameters = 0;
  for (const auto& name : stored.names()) {
    if (name.ends_with(".e_score_correction_bias")) continue;  // moved by hand, not learned
    elements += checkpoint::read_tensor(stored, name).numel();
    parameters += names_.ours(name).size();
  }
  EXPECT_EQ(models::num_parameters(shape), elements);
  EXPECT_EQ(model()->named_parameters().size(), parameters);
}

TEST_P(FamilyParityTest, LogitsEqualTransformers) {
  const torch::NoGradGuard no_grad;
  const auto built = model();
  const auto logits = checkpoint::read_tensor(expected_, "logits");
  EXPECT_LT(largest_difference(built->logits(ids_), logits), 1e-5);
  // Calls of other lengths in between change nothing.
  built->logits(torch::cat({ids_, ids_}, 1));
  built->logits(ids_.slice(1, 0, 5));
  EXPECT_LT(largest_difference(built->logits(ids_), logits), 1e-5);
}

TEST_P(FamilyParityTest, LossAndGradientsEqualTransformers) {
  const auto built = model();
  // transformers shifts the labels: the last token of a row predicts nothing.
  const auto targets = torch::cat({ids_.slice(1, 1), torch::full({ids_.size(0), 1}, -100)}, 1);
  const auto loss =
      built->loss(ids_, targets, 1.0 / static_cast<double>(ids_.numel() - ids_.size(0)));
  EXPECT_NEAR(loss.item<double>(), checkpoint::read_tensor(expected_, "loss").item<double>(), 2e-6);
  loss.backward();
  const auto parameters = built->named_parameters();
  int compared = 0;
  for (const auto& name : expected_.names()) {
    if (!name.starts_with("grad.")) continue;
    const auto gradient = checkpoint::read_tensor(expected_, name);
    const double size = gradient.abs().max().item<double>();
    int64_t elements = 0;
    for (const auto& ours :
         names_.ours(name.substr(5))) {  // several where files have them together
      const auto expected =
          ours.part ? gradient.as_strided(ours.part->shape, ours.part->strides, ours.part->offset)
                    : gradient;
      const auto found = parameters[ours.name].grad();
      ASSERT_EQ(found.sizes(), expected.sizes()) << ours.name;
      EXPECT_LT(largest_difference(found, expected), 1e-5 * size) << ours.name;
      elements += expected.numel();
    }
    EXPECT_EQ(elements, gradient.numel()) << name;
    EXPECT_GT(size, 0) << name << " tells nothing";
    ++compared;
  }
  EXPECT_GE(compared, 2);
}

/// Loss and gradients of documents in rows, with padding between them, are the sums of each by itself.
TEST_P(FamilyParityTest, DocumentsInARowAreAsIfEachWereAlone) {
  const auto flat = ids_.flatten().slice(0, 0, 28);
  const auto targets = flat.roll(-1).clone();
  const std::vector<std::pair<int64_t, int64_t>> documents{{0, 5}, {5, 6}, {6, 13}, {14, 27}};
  const auto gradients_of = [](models::LanguageModel& model) {
    std::map<std::string, torch::Tensor> gradients;
    for (const auto& item : model.named_parameters()) gradients[item.key()] = item.value().grad();
    return gradients;
  };
  const auto apart = model();
  double sum = 0;
  for (auto [begin, end] : documents) {
    const auto of = [&](const torch::Tensor& x) { return x.slice(0, begin, end).unsqueeze(0); };
    const auto loss = apart->loss(of(flat), of(targets), 0.1);
    loss.backward();
    sum += loss.item<double>();
  }
  const auto together = model();
  auto padded = torch::full({28}, -100, torch::kLong);
  std::vector<int64_t> bounds;
  for (auto [begin, end] : documents) {
    padded.slice(0, begin, end).copy_(targets.slice(0, begin, end));
    bounds.insert(bounds.end(), {begin, end});
  }
  const auto loss = together->loss(flat.view({2, 14}), padded.view({2, 14}), 0.1,
                                   torch::tensor(bounds, torch::kLong).view({-1, 2}));
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), sum, 1e-6 * std::abs(sum));
  const auto expected = gradients_of(*apart);
  for (const auto& [name, gradient] : gradients_of(*together)) {
    const double size = expected.at(name).abs().max().item<double>();
    EXPECT_LE(largest_difference(gradient, expected.at(name)), 2e-6 * std::max(size, 1.0)) << name;
  }
}

// Angles that depend on a sequence's length depend on each document's own, on both sides of the original one.
TEST(RotaryScaling, GoesByEachDocumentsLength) {
  for (const auto* name : {"llama_dynamic", "phi3_longrope"}) {
    const auto folder = std::filesystem::path("tests/fixtures/families") / name;
    const auto shape = models::read_model_shape(folder / "config.json");
    const int64_t original = shape.rope_scaling->original_max_seq_len;
    const int64_t seq_len = 2 * original + 9;
    const torch::NoGradGuard no_grad;
    const auto model = models::make_language_model(shape);
    checkpoint::load_pretrained(*model, folder);
    const auto ids = torch::arange(2 * seq_len).remainder(shape.vocab_size);
    const std::vector<int64_t> bounds{
        0, 5, 5, 8 + original, 8 + original, seq_len, seq_len, 2 * seq_len - 2};
    auto targets = torch::full({2 * seq_len}, -100, torch::kLong);
    double apart = 0;
    for (size_t i = 0; i < bounds.size(); i += 2) {
      const auto of = [&](const torch::Tensor& x) { return x.slice(0, bounds[i], bounds[i + 1]); };
      of(targets).copy_(of(ids));
      apart += model->loss(of(ids).unsqueeze(0), of(targets).unsqueeze(0), 0.1).item<double>();
    }
    const auto rows = [&](const torch::Tensor& x) { return x.view({2, seq_len}); };
    const auto together = model->loss(rows(ids), rows(targets), 0.1,
                                      torch::tensor(bounds, torch::kLong).view({-1, 2}));
    EXPECT_NEAR(together.item<double>(), apart, 1e-6 * std::abs(apart)) << name;
  }
}

/// Into a checkpoint and out again: what transformers loads is what it had written.
TEST_P(FamilyParityTest, ComesBackFromACheckpointTheSame) {
  const std::filesystem::path folder =
      ::testing::TempDir() + "family_" + GetParam() + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  checkpoint::convert({.from = {.source = folder_},
                       .to = checkpoint::Target::tessera,
                       .destination = folder / "ours"});
  checkpoint::convert({.from = {.source = folder / "ours"},
                       .to = checkpoint::Target::huggingface,
                       .destination = folder / "theirs"});
  const checkpoint::SafetensorsFile before(folder_ + "/model.safetensors");
  const checkpoint::SafetensorsFile after(folder / "theirs" / "model.safetensors");
  ASSERT_EQ(before.tensors(), after.tensors());
  for (const auto& name : before.names()) {
    EXPECT_TRUE(
        torch::equal(checkpoint::read_tensor(before, name), checkpoint::read_tensor(after, name)))
        << name;
  }
  EXPECT_EQ(models::read_model_shape(folder / "theirs" / "config.json"),
            models::read_model_shape(folder_ + "/config.json"));
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(All, FamilyParityTest,
                         ::testing::Values("llama_linear", "llama_dynamic", "llama_yarn",
                                           "llama_yarn_mscale", "llama_3", "llama_biases",
                                           "llama_tied", "mistral", "qwen2", "qwen2_window",
                                           "qwen3", "olmo2", "smollm3", "phi3", "phi3_longrope",
                                           "gemma3", "gemma2", "mixtral", "qwen3_moe", "olmoe",
                                           "qwen2_moe", "pr_moe", "deepseek_v3",
                                           "deepseek_v3_plain", "gpt_oss"),
                         [](const auto& family) { return family.param; });

// What routers of the fixture's two layers say of each token.
TEST(Mixtral, LogitsOfItsRoutersEqualTransformers) {
  const torch::NoGradGuard no_grad;
  const std::string folder = "tests/fixtures/mixtral_micro";
  const checkpoint::SafetensorsFile expected(folder + "/expected.safetensors");
  auto model = models::make_language_model(models::read_model_shape(folder + "/config.json"));
  checkpoint::load_pretrained(*model, folder);
  std::vector<torch::Tensor> found;
  for (const auto& module : model->modules()) {
    if (auto* router = module->as<nn::RouterImpl>()) {
      router->balance = [&](const nn::RouterCall& call, const torch::Tensor& weights) {
        found.push_back(call.logits);
        return weights;
      };
    }
  }
  const auto logits = model->logits(checkpoint::read_tensor(expected, "input_ids"));
  EXPECT_LT(largest_difference(logits, checkpoint::read_tensor(expected, "logits")), 1e-5);
  ASSERT_EQ(found.size(), 2u);
  for (size_t i = 0; i < found.size(); ++i) {
    const auto want = checkpoint::read_tensor(expected, "router_logits_" + std::to_string(i));
    EXPECT_LT(largest_difference(found[i], want), 1e-5) << i;
  }
}

// Experts that no token chose have gradients of zeros.
TEST(Mixtral, EveryExpertHasAGradient) {
  const std::string folder = "tests/fixtures/families/qwen3_moe";
  auto model = models::make_language_model(models::read_model_shape(folder + "/config.json"));
  checkpoint::load_pretrained(*model, folder);
  const auto ids = torch::tensor({{5, 9}});
  model->loss(ids, ids, 1.0).backward();
  int idle = 0;
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    idle += item.value().grad().abs().max().item<float>() == 0;
  }
  EXPECT_GE(idle, 2 * 3) << "two tokens take three of seven experts each";
}

class BertParityTest : public ::testing::TestWithParam<std::string> {};

TEST_P(BertParityTest, LogitsEqualTransformers) {
  const torch::NoGradGuard no_grad;
  const std::string folder = "tests/fixtures/" + GetParam();
  models::Bert model(models::read_bert_shape(folder + "/config.json"));
  checkpoint::load_pretrained(model, folder);
  const checkpoint::SafetensorsFile expected(folder + "/expected.safetensors");
  const auto read = [&](const char* name) { return checkpoint::read_tensor(expected, name); };
  const auto ids = read("input_ids"), types = read("token_type_ids"), mask = read("attention_mask");
  const auto logits = read("logits");
  EXPECT_LT(largest_difference(model.logits(ids, types, mask), logits), 1e-5);
  // The first row has no padding: without a mask it is the same, without token types it is not.
  const auto first = [](const torch::Tensor& rows) { return rows.slice(0, 0, 1); };
  EXPECT_LT(largest_difference(model.logits(first(ids), first(types)), first(logits)), 1e-5);
  EXPECT_GT(largest_difference(model.logits(first(ids)), first(logits)), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(All, BertParityTest, ::testing::Values("bert_micro", "bert_cls_micro"));

TEST(Bert, RefusesMorePositionsThanItHas) {
  models::Bert model(models::read_bert_shape("tests/fixtures/bert_micro/config.json"));
  EXPECT_THROW(model.logits(torch::zeros({1, 65}, torch::kInt64)), c10::ValueError);
}

}  // namespace
}  // namespace tessera
