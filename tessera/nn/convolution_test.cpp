#include "tessera/nn/convolution.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>

namespace tessera::nn {
namespace {

TEST(Conv2d, EqualsTorchs) {
  Conv2d ours(3, 5, Conv2dOptions{.kernel_size = 4, .stride = 3, .padding = 2, .with_bias = true});
  torch::nn::Conv2d reference(torch::nn::Conv2dOptions(3, 5, 4).stride(3).padding(2));
  ours->weight.data().copy_(reference->weight);
  ours->bias.data().copy_(reference->bias);
  const auto x = torch::randn({2, 3, 11, 9});
  const auto y = ours(x), expected = reference(x);
  EXPECT_TRUE(torch::equal(y, expected));
  y.square().sum().backward();
  expected.square().sum().backward();
  EXPECT_TRUE(torch::allclose(ours->weight.grad(), reference->weight.grad()));
  EXPECT_TRUE(torch::allclose(ours->bias.grad(), reference->bias.grad()));
}

TEST(Conv2d, HasNoBiasUnlessAskedAndLivesOnTheMetaDevice) {
  const Conv2d convolution(1 << 12, 1 << 12, Conv2dOptions{.kernel_size = 512}, torch::kMeta);
  EXPECT_EQ(convolution->parameters().size(), 1U);
  EXPECT_EQ(convolution->weight.numel(), int64_t{1} << 42);
}

}  // namespace
}  // namespace tessera::nn
