#include "tests/support/resnet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace tessera::testing {
namespace {

int64_t num_parameters(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

TEST(ResNet, HasAsManyParametersAsTorchvisions) {
  const torch::TensorOptions meta(torch::kMeta);
  EXPECT_EQ(num_parameters(ResNet(resnet50_shape(), meta)), 25'557'032);
  // resnet18 differs from ResNet-20 in shape only.
  EXPECT_EQ(num_parameters(ResNet({.stem = ResNetStem::imagenet,
                                   .blocks_per_stage = {2, 2, 2, 2},
                                   .width = 64,
                                   .num_classes = 1000},
                                  meta)),
            11'689'512);
}

TEST(ResNet, TwentyLayersHaveThePapersParametersAndTwoProjections) {
  int64_t expected = 3 * 16 * 9 + 2 * 16;  // stem
  for (const int64_t width : {16, 32, 64}) {
    const int64_t first = std::max<int64_t>(16, width / 2);
    expected += (first + 5 * width) * width * 9 + 6 * 2 * width;
  }
  expected += 64 * 10 + 10;
  EXPECT_EQ(expected, 269'722);  // without projections
  expected += 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64;
  EXPECT_EQ(num_parameters(ResNet(resnet20_shape())), expected);
}

TEST(ResNet, NamesAreTorchvisions) {
  const ResNet net(resnet50_shape(), torch::kMeta);
  const auto parameters = net.named_parameters(), buffers = net.named_buffers();
  EXPECT_EQ(parameters.size(), 161U);
  EXPECT_EQ(buffers.size(), 159U);
  const auto sizes = [&](const char* name) { return parameters[name].sizes().vec(); };
  EXPECT_EQ(sizes("conv1.weight"), (std::vector<int64_t>{64, 3, 7, 7}));
  EXPECT_EQ(sizes("layer1.0.downsample.0.weight"), (std::vector<int64_t>{256, 64, 1, 1}));
  EXPECT_EQ(sizes("layer4.2.conv2.weight"), (std::vector<int64_t>{512, 512, 3, 3}));
  EXPECT_EQ(sizes("layer4.2.bn3.bias"), (std::vector<int64_t>{2048}));
  EXPECT_EQ(sizes("fc.weight"), (std::vector<int64_t>{1000, 2048}));
  EXPECT_TRUE(buffers.contains("layer2.0.downsample.1.num_batches_tracked"));
}

/// The shape of the last block's output, and of the net's.
std::pair<std::vector<int64_t>, std::vector<int64_t>> output_sizes(const ResNetShape& shape,
                                                                   int64_t image_size) {
  ResNet net(shape);
  initialise(net, 1);
  net.eval();
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> last_block;
  for (const auto& module : net.modules(/*include_self=*/false)) {
    if (auto* block = module->as<ResNetBlockImpl>()) {
      block->add_hooks(
          {.replace_output = [&](torch::Tensor& output) { last_block = output.sizes().vec(); }});
    }
  }
  const auto logits = net.forward(torch::zeros({2, 3, image_size, image_size}));
  return {last_block, logits.sizes().vec()};
}

TEST(ResNet, StagesHalveTheImage) {
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(output_sizes(resnet20_shape(), 32), std::pair(Sizes{2, 64, 8, 8}, Sizes{2, 10}));
  EXPECT_EQ(output_sizes(resnet50_shape(), 64), std::pair(Sizes{2, 2048, 2, 2}, Sizes{2, 1000}));
}

TEST(ResNet, InitialiseDependsOnSeedAndNameAlone) {
  ResNet first(resnet20_shape()), second(resnet20_shape()), other(resnet20_shape());
  initialise(first, 1), initialise(second, 1), initialise(other, 2);
  const auto same = second.named_parameters(), different = other.named_parameters();
  for (const auto& item : first.named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), same[item.key()])) << item.key();
  }
  const auto name = "layer2.0.conv1.weight";
  EXPECT_FALSE(torch::equal(same[name], different[name]));
  EXPECT_NEAR(same[name].std().item<double>(), std::sqrt(2. / (32 * 9)), 0.003);
}

TEST(ResNet, LearnsASmallBatch) {
  ResNet net({.blocks_per_stage = {1, 1}, .width = 8});
  initialise(net, 5);
  torch::manual_seed(1);
  const auto images = torch::randn({16, 3, 8, 8});
  const auto labels = torch::randint(0, 10, {16}, torch::kInt64);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    const auto loss = at::cross_entropy_loss(net.forward(images), labels);
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) {
      parameter.sub_(parameter.grad(), 0.2);
      parameter.grad().zero_();
    }
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, 0.3 * first);
}

}  // namespace
}  // namespace tessera::testing
