#include <gmock/gmock.h>

#include <set>
#include <string>

#include "tessera/config/run_config.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/module_path.h"

namespace tessera::models {
namespace {

std::shared_ptr<LanguageModel> on_meta(const models::ModelShape& shape) {
  return make_language_model(shape, torch::TensorOptions().device(torch::kMeta));
}

class PresetTest : public ::testing::TestWithParam<std::string> {
 protected:
  /// Shapes with the head tied and untied; of a llama also one with every bias and norm that its
  /// family has.
  static std::vector<models::ModelShape> shapes() {
    auto shape = models::model_preset(GetParam());
    auto other = shape, full = shape;
    other.tie_embeddings = !shape.tie_embeddings;
    if (shape.family == models::ModelFamily::gpt2) return {shape, other};
    full.qkv_bias = full.out_bias = full.mlp_bias = full.qk_norm = true;
    return {shape, other, full};
  }
};

TEST_P(PresetTest, HasTheParametersThatTheConfigurationCounts) {
  for (const auto& shape : shapes()) {
    const auto model = on_meta(shape);
    int64_t count = 0;
    for (const auto& parameter : model->parameters()) {
      ASSERT_TRUE(parameter.is_meta());
      count += parameter.numel();
    }
    EXPECT_EQ(count, models::num_parameters(shape)) << "tied: " << shape.tie_embeddings;
  }
}

TEST_P(PresetTest, LayoutHasEveryModule) {
  for (const auto& shape : shapes()) {
    const auto model = on_meta(shape);
    EXPECT_EQ(static_cast<int64_t>(model->blocks().size()), shape.num_layers);
    std::set<const void*> in_layout;
    const auto layout = model->layout();
    for (const auto* part : {&layout.embedding, &layout.layers, &layout.head}) {
      for (const auto& path : *part) {
        const auto module = nn::find_module(*model, path);
        ASSERT_NE(module, nullptr) << path;
        for (const auto& parameter : module->parameters()) {
          EXPECT_TRUE(in_layout.insert(parameter.unsafeGetTensorImpl()).second) << path;
        }
      }
    }
    EXPECT_EQ(in_layout.size(), model->parameters().size()) << "tied: " << shape.tie_embeddings;
  }
}

std::string test_name(const ::testing::TestParamInfo<std::string>& preset) {
  std::string name = preset.param;
  for (auto& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, PresetTest, ::testing::ValuesIn(models::model_preset_names()),
                         test_name);

/// Loss and gradients of GPT-2 with dropout on 6 sequences, in micro-batches that end at `ends`.
std::vector<torch::Tensor> dropping_step(double dropout, const std::vector<int64_t>& ends) {
  auto shape = models::model_preset("gpt2");
  shape.num_layers = 2, shape.dim = 32, shape.num_heads = 4, shape.num_kv_heads = 4;
  shape.head_dim = 8, shape.ffn_dim = 128, shape.vocab_size = 50, shape.dropout = dropout;
  const auto model = make_language_model(shape);
  initialise(*model, /*seed=*/1, /*std=*/0.1);
  const auto ids = torch::arange(6 * 9, torch::kInt64).mul(7).remainder(50).view({6, 9});
  auto sum = torch::zeros({});
  int64_t row = 0;
  for (const int64_t end : ends) {
    const nn::RandomScope scope(nn::RandomContext{.seed = 3, .step = 1, .first_row = row});
    const auto part = ids.slice(0, row, end);
    const auto loss = model->loss(part, part, 1.0);
    loss.backward();
    sum += loss.detach();
    row = end;
  }
  std::vector<torch::Tensor> results{sum};
  for (const auto& parameter : model->parameters()) results.push_back(parameter.grad());
  return results;
}

TEST(Gpt2, DropsTheSameHoweverABatchIsDivided) {
  const auto whole = dropping_step(0.2, {6});
  EXPECT_FALSE(whole[0].allclose(dropping_step(0, {6})[0], 1e-3));
  for (const auto& ends : std::vector<std::vector<int64_t>>{{3, 6}, {1, 2, 3, 4, 5, 6}, {5, 6}}) {
    const auto divided = dropping_step(0.2, ends);
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(whole[i].allclose(divided[i], 1e-4, 1e-4)) << "result " << i;
    }
  }
}

TEST(Llama, StartsWithNormsOfOneAndBiasesOfZero) {
  auto shape = models::model_preset("micro");
  shape.qkv_bias = shape.out_bias = shape.mlp_bias = shape.qk_norm = true;
  const auto model = make_language_model(shape);
  initialise(*model, /*seed=*/1, /*std=*/0.02);
  for (const auto& item : model->named_parameters()) {
    if (item.value().dim() != 1) continue;
    const double value = item.key().ends_with(".bias") ? 0 : 1;
    EXPECT_TRUE(item.value().eq(value).all().item<bool>()) << item.key();
  }
}

TEST(LanguageModel, LogitsOfEveryFamily) {
  auto gpt2 = models::model_preset("gpt2");
  gpt2.num_layers = 1;
  for (const auto& shape : {models::model_preset("micro"), gpt2}) {
    const auto model = make_language_model(shape);
    initialise(*model, /*seed=*/1, /*std=*/0.02);
    const auto logits = model->logits(torch::arange(14, torch::kInt64).reshape({2, 7}));
    EXPECT_THAT(logits.sizes().vec(), testing::ElementsAre(2, 7, shape.vocab_size));
    EXPECT_TRUE(logits.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace tessera::models
