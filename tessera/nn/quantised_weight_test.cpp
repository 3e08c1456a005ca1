// Linear layers in 4 and 8 bits beside the same layers with the dequantised weight.
#include "tessera/nn/quantised_weight.h"

#include <gtest/gtest.h>

#include <memory>

#include "tessera/kernels/quantised.h"
#include "tessera/nn/layers.h"

namespace tessera::nn {
namespace {

TEST(QuantisedWeightTest, ALayerIsThatOfTheDequantisedWeight) {
  torch::manual_seed(1);
  for (const auto format :
       {WeightFormat::nf4, WeightFormat::nf4_double, WeightFormat::fp4, WeightFormat::int8}) {
    Linear plain(128, 48, true), layer(128, 48, true);
    {
      const torch::NoGradGuard no_grad;
      layer->weight.normal_(0, 0.1);
      layer->bias.normal_();
      plain->bias.copy_(layer->bias);
      plain->weight.copy_(
          kernels::dequantise(kernels::quantise(layer->weight, format), torch::kFloat));
    }
    quantise_weight(*layer, {.format = format});
    for (const auto& item : layer->named_parameters()) {
      EXPECT_EQ(item.value().requires_grad(), item.key() == "bias") << item.key();
      EXPECT_EQ(item.value().scalar_type(), item.key() == "bias" ? torch::kFloat : torch::kByte);
    }
    auto x = torch::randn({2, 5, 128}).requires_grad_(), same = x.detach().clone().requires_grad_();
    layer(x).square().sum().backward();
    plain(same).square().sum().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), same.grad(), 1e-5, 1e-5));
    EXPECT_TRUE(torch::allclose(layer->bias.grad(), plain->bias.grad(), 1e-5, 1e-5));
  }
}

/// A Conv1D's weight is quantised as that of a Linear: along the input features.
TEST(QuantisedWeightTest, AConv1DIsTurned) {
  torch::manual_seed(2);
  Conv1D layer(64, 192);
  const torch::NoGradGuard no_grad;
  layer->weight.normal_(0, 0.1);
  layer->bias.zero_();
  const auto turned = layer->weight.t().contiguous();
  const auto weight =
      kernels::dequantise(kernels::quantise(turned, WeightFormat::nf4), torch::kFloat);
  quantise_weight(*layer, {.format = WeightFormat::nf4});
  const auto x = torch::randn({7, 64});
  EXPECT_TRUE(torch::allclose(layer(x), torch::linear(x, weight), 1e-5, 1e-6));
}

TEST(QuantisedWeightTest, OnlyLinearLayersOfBlocksAreQuantised) {
  struct Block : Hookable {
    Block() {
      register_module("proj", proj);
      register_module("scale", scale);
    }
    Linear proj{64, 8};
    RMSNorm scale{8, 1e-5};
  };
  struct Model : torch::nn::Module {
    Model() {
      register_module("block", block);
      register_module("blocks_head", head);
    }
    std::shared_ptr<Block> block = std::make_shared<Block>();
    Linear head{8, 4};
  };
  const auto held = std::make_shared<Model>();  // modules list what shared pointers hold
  auto& model = *held;
  const auto layers =
      quantise_linear_layers(model, {"block"}, {.format = WeightFormat::nf4_double});
  ASSERT_EQ(layers.size(), 1);
  EXPECT_EQ(layers[0].path, "block.proj");
  EXPECT_EQ(layers[0].shape, (QuantisedShape{WeightFormat::nf4_double, 8, 64, 64}));
  EXPECT_EQ(model.head->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(model.block->scale->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(quantised_bytes(layers[0].shape), 8 * 32 + 8 + 4 + 4);
}

}  // namespace
}  // namespace tessera::nn
