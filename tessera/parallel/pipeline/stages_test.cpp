#include "tessera/parallel/pipeline/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/language_model.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

StageModules cut(const models::LanguageModel& model, std::vector<size_t> layers) {
  const auto layout = model.layout();
  StageModules stages{layout.embedding};
  auto next = layout.layers.begin();
  for (size_t i = 0; i < layers.size(); ++i) {
    if (i > 0) stages.emplace_back();
    for (size_t k = 0; k < layers[i]; ++k) stages.back().push_back(*next++);
  }
  stages.back().insert(stages.back().end(), layout.head.begin(), layout.head.end());
  return stages;
}

std::vector<std::string> names(const torch::nn::Module& model) {
  std::vector<std::string> result;
  for (const auto& item : model.named_parameters()) result.push_back(item.key());
  return result;
}

TEST(Stages, KeepNamesAndShareWhatIsTied) {
  on_mesh({.shape = {.pp = 3}}, [](const mesh::DeviceMesh& mesh) {
    for (const bool tied : {false, true}) {
      auto shape = models::model_preset("micro");
      shape.num_layers = 3;
      shape.tie_embeddings = tied;
      const auto model = models::make_language_model(shape, torch::kMeta);
      const auto shared = keep_stages(*model, cut(*model, {1, 2, 0}), {0, 1, 2}, mesh);
      const auto here = names(*model);
      const auto has = [&](const std::string& name) { return std::ranges::count(here, name) == 1; };
      EXPECT_EQ(has("model.layers.0.mlp.up_proj.weight"), mesh.rank() == 0);
      EXPECT_EQ(has("model.layers.2.mlp.up_proj.weight"), mesh.rank() == 1);
      EXPECT_EQ(has("model.norm.weight"), mesh.rank() == 2);
      EXPECT_EQ(has("lm_head.weight"), mesh.rank() == 2 && !tied);
      EXPECT_EQ(has("model.embed_tokens.weight"), mesh.rank() == 0 || (tied && mesh.rank() == 2));
      EXPECT_EQ(model->blocks().size(), mesh.rank() == 2 ? 0U : mesh.rank() + 1U);
      ASSERT_EQ(shared.size(), tied && mesh.rank() != 1 ? 1U : 0U);
      if (shared.empty()) continue;
      const auto& replication = shared.at("model.embed_tokens.weight");
      EXPECT_EQ(replication.ranks.size(), 2);
      EXPECT_EQ(replication.ranks.name(), "pp[0,2]");
      EXPECT_TRUE(replication.partial_gradients);
    }
  });
}

TEST(Stages, OneRankWithFirstAndLastKeepsBoth) {
  on_mesh({.shape = {.pp = 2}}, [](const mesh::DeviceMesh& mesh) {
    auto shape = models::model_preset("micro");
    shape.num_layers = 4;
    shape.tie_embeddings = true;
    const auto model = models::make_language_model(shape, torch::kMeta);
    const auto shared = keep_stages(*model, cut(*model, {1, 1, 1, 1}), {0, 1, 1, 0}, mesh);
    EXPECT_TRUE(shared.empty());
    EXPECT_EQ(model->blocks().size(), 2U);
  });
}

TEST(Stages, RefuseWhatIsFrozenInOnePlace) {
  on_mesh({.shape = {.pp = 2}}, [](const mesh::DeviceMesh& mesh) {
    auto shape = models::model_preset("micro");
    shape.tie_embeddings = true;
    const auto model = models::make_language_model(shape, torch::kMeta);
    if (mesh.rank() == 1)
      model->named_parameters()["model.embed_tokens.weight"].set_requires_grad(false);
    std::vector<size_t> layers(2, 0);
    layers[0] = static_cast<size_t>(shape.num_layers);
    try {
      keep_stages(*model, cut(*model, layers), {0, 1}, mesh);
      FAIL() << "expected an error";
    } catch (const UserError& error) {
      EXPECT_STREQ(error.what(),
                   "model.embed_tokens.weight: tied over stages, but trained in stage 0, frozen in "
                   "stage 1; freeze it in all of them or in none");
    }
  });
}

}  // namespace
}  // namespace tessera::parallel
