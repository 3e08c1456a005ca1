#include "tessera/plan/fp8_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/plan/run_plan.h"

namespace tessera::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// torchao's published microbenchmarks of an H100, tensorwise: below 1 for small matrices, far above for
/// large ones; and of 8 B of parameters the order of its recipes.
TEST(Fp8Gain, IsNearWhatTorchaoMeasured) {
  EXPECT_NEAR(fp8_gain(Matmul::fp8_tensor, 1024, 2048, 1024), 0.80, 0.03);
  EXPECT_NEAR(fp8_gain(Matmul::fp8_tensor, 16384, 8192, 4096), 1.39, 0.03);
  const auto of = [](Matmul matmul) { return fp8_gain(matmul, 14336, 4096, 8192); };
  EXPECT_GT(of(Matmul::fp8_delayed), of(Matmul::fp8_tensor));
  EXPECT_GT(of(Matmul::fp8_tensor), of(Matmul::fp8_row));
  EXPECT_GT(of(Matmul::fp8_row), of(Matmul::fp8_row_wgrad16));
  EXPECT_GT(of(Matmul::fp8_row_wgrad16), 1);
}

/// A Llama of width 2048 in which keys and values are small.
models::ModelShape wide() {
  auto shape = models::model_preset("tiny");
  shape.dim = 2048, shape.ffn_dim = 8192, shape.num_layers = 3;
  shape.num_heads = 16, shape.num_kv_heads = 4, shape.head_dim = 128;
  return shape;
}

config::RunConfig job() {
  config::RunConfig run;
  run.parallel.num_ranks = 1;
  run.data.seq_len = 2048;
  run.train.global_batch = 2;
  run.precision.compute = FloatType::bf16;
  run.precision.matmul = Matmul::fp8_tensor;
  return run;
}

std::vector<std::string> kept(const std::vector<Fp8Layer>& layers, int64_t block) {
  std::vector<std::string> names;
  for (const auto& layer : layers) {
    if (layer.kept && layer.block == block)
      names.push_back(layer.path.substr(layer.path.rfind('.') + 1));
  }
  return names;
}

TEST(Fp8Layers, AutoKeepsWhatLoses) {
  auto run = job();
  run.precision.fp8_keep = {"auto"};
  const auto layers = make_plan(run, wide()).fp8;
  ASSERT_EQ(layers.size(), 21u);
  EXPECT_THAT(kept(layers, 1), ElementsAre("k_proj", "v_proj"));
  for (const auto& layer : layers) EXPECT_EQ(layer.kept, layer.gain <= 1) << layer.path;
  EXPECT_EQ(layers[1].path, "model.layers.0.self_attn.k_proj");
  EXPECT_EQ(layers[1].out, 512);
  EXPECT_EQ(layers[1].rows, 4096);
  run.precision.fp8_keep = {"first_last", "auto", "*.o_proj"};
  const auto more = make_plan(run, wide()).fp8;
  EXPECT_THAT(kept(more, 1), ElementsAre("k_proj", "v_proj", "o_proj"));
  EXPECT_EQ(kept(more, 0).size(), 7u);
  const auto table = fp8_table(more);
  EXPECT_EQ(table.size(), 7u);
  EXPECT_EQ(table[1], "model.layers.*.self_attn.k_proj  [512, 2048] x 4,096   0.78 x  kept");
  EXPECT_THAT(table[4], HasSubstr("1.22 x  2 of 3 kept"));
}

/// A rank's part of a matrix is what it multiplies.
TEST(Fp8Layers, TensorParallelismMakesSmallerMatrices) {
  auto run = job();
  run.precision.fp8_keep = {"auto"};
  run.parallel.num_ranks = run.parallel.tp = 4;
  const auto layers = make_plan(run, wide()).fp8;
  EXPECT_EQ(layers[0].out, 512);
  EXPECT_THAT(kept(layers, 0), ElementsAre("q_proj", "k_proj", "v_proj", "o_proj"));
}

/// Sizes that 8-bit units cannot multiply are left alone, not an error.
TEST(Fp8Layers, AutoKeepsOddSizes) {
  auto run = job();
  run.precision.fp8_keep = {"auto"};
  auto shape = wide();
  shape.ffn_dim = 8190;
  EXPECT_THAT(kept(make_plan(run, shape).fp8, 0),
              ElementsAre("k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"));
  run.precision.fp8_pad = true;
  EXPECT_THAT(kept(make_plan(run, shape).fp8, 0), ElementsAre("k_proj", "v_proj"));
}

TEST(Fp8Layers, MistakesAreNamed) {
  auto run = job();
  run.precision.fp8_keep = {"auto"};
  const auto refusal = [&](const models::ModelShape& shape) -> std::string {
    try {
      make_plan(run, shape);
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal(wide()), "");
  EXPECT_THAT(refusal(models::model_preset("tiny")),
              HasSubstr("auto leaves no layer in 8 bits: model.layers.*.mlp."));
  run.precision.fp8_keep = {"auto", "*.typo"};
  EXPECT_THAT(refusal(wide()), HasSubstr("'*.typo' matches no linear layer"));
  run.precision.fp8_keep = {"first_last", "*.1.*"};
  EXPECT_THAT(refusal(wide()),
              HasSubstr("precision.fp8_keep: first_last, *.1.* leave no layer in 8 bits"));
}

}  // namespace
}  // namespace tessera::plan
