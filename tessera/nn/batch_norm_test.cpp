#include "tessera/nn/batch_norm.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

namespace tessera::nn {
namespace {

using torch::Tensor;

void expect_close(const Tensor& actual, const Tensor& expected, double tolerance = 1e-5) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_TRUE(torch::allclose(actual.to(expected.scalar_type()), expected, tolerance, tolerance))
      << "worst difference " << (actual - expected).abs().max().item<double>();
}

/// Runs three training steps on both, then compares everything there is to compare.
template <typename Reference>
void expect_same_training(BatchNorm& ours, Reference& reference, const at::IntArrayRef sizes) {
  torch::manual_seed(1);
  for (auto* tensor : {&ours->weight, &ours->bias}) {
    if (tensor->defined()) tensor->data().normal_();
  }
  if (ours->weight.defined()) {
    reference->weight.data().copy_(ours->weight);
    reference->bias.data().copy_(ours->bias);
  }
  for (int step = 0; step < 3; ++step) {
    const auto x = torch::randn(sizes).mul_(2 + step).add_(step).requires_grad_();
    const auto same_x = x.detach().clone().requires_grad_();
    const auto scale = torch::randn(sizes);
    const auto y = ours(x), expected = reference(same_x);
    expect_close(y, expected);
    (y * scale).sum().backward();
    (expected * scale).sum().backward();
    expect_close(x.grad(), same_x.grad());
  }
  const auto gradients = reference->named_parameters();
  for (const auto& item : ours->named_parameters()) {
    expect_close(item.value().grad(), gradients[item.key()].grad(), 1e-4);
  }
  const auto buffers = reference->named_buffers();
  ASSERT_EQ(ours->named_buffers().keys(), buffers.keys());
  for (const auto& item : ours->named_buffers()) expect_close(item.value(), buffers[item.key()]);
  ours->eval(), reference->eval();
  const auto x = torch::randn(sizes);
  expect_close(ours(x), reference(x));
}

struct Case {
  std::optional<double> momentum;
  bool affine, tracks, synchronised;
};

class BatchNormTest : public ::testing::TestWithParam<Case> {};

// Synchronised over this process alone, our own arithmetic has LibTorch's results.
TEST_P(BatchNormTest, EqualsLibTorchsInTrainingAndEvaluation) {
  const auto& [momentum, affine, tracks, synchronised] = GetParam();
  BatchNorm ours(
      5, BatchNormOptions{
             .eps = 1e-3, .momentum = momentum, .affine = affine, .track_running_stats = tracks});
  if (synchronised) ours->synchronise([](const Tensor&) {});
  torch::nn::BatchNorm2d reference(torch::nn::BatchNorm2dOptions(5)
                                       .eps(1e-3)
                                       .momentum(momentum)
                                       .affine(affine)
                                       .track_running_stats(tracks));
  expect_same_training(ours, reference, {4, 5, 3, 2});
}

INSTANTIATE_TEST_SUITE_P(
    Options, BatchNormTest,
    ::testing::Values(Case{0.1, true, true, false}, Case{0.1, true, true, true},
                      Case{std::nullopt, true, true, false}, Case{std::nullopt, true, true, true},
                      Case{0.3, false, true, true}, Case{0.1, true, false, false}));

TEST(BatchNorm, TakesAnyNumberOfDimensions) {
  BatchNorm flat(7), volume(2);
  flat->synchronise([](const Tensor&) {});
  volume->synchronise([](const Tensor&) {});
  torch::nn::BatchNorm1d flat_reference(7);
  torch::nn::BatchNorm3d volume_reference(2);
  expect_same_training(flat, flat_reference, {6, 7});
  expect_same_training(volume, volume_reference, {3, 2, 4, 3, 5});
}

// Twice the same batch has the batch's own mean and biased variance.
TEST(BatchNorm, AddsUpOnceInForwardAndOnceInBackward) {
  BatchNorm plain(3), doubled(3);
  std::vector<int64_t> lengths;
  doubled->synchronise([&](const Tensor& sums) {
    lengths.push_back(sums.numel());
    const_cast<Tensor&>(sums).mul_(2);
  });
  const auto x = torch::randn({4, 3, 2}).requires_grad_();
  const auto same_x = x.detach().clone().requires_grad_();
  const auto scale = torch::randn({4, 3, 2});
  const auto y = doubled(x), expected = plain(same_x);
  (y * scale).sum().backward();
  (expected * scale).sum().backward();
  expect_close(y, expected);
  expect_close(x.grad(), same_x.grad());
  expect_close(doubled->weight.grad(), plain->weight.grad());  // this rank's, not the sum
  EXPECT_EQ(lengths, (std::vector<int64_t>{7, 6}));
  // Unbiased over 16 values, not 8.
  expect_close((doubled->running_var - 0.9) / 0.1 / (16. / 15),
               (plain->running_var - 0.9) / 0.1 / (8. / 7), 1e-4);
  doubled->eval();
  doubled(x);
  EXPECT_EQ(lengths.size(), 2U);
}

TEST(BatchNorm, AnInputWithoutGradientNeedsNoCollectiveInBackward) {
  BatchNorm batch_norm(3);
  int calls = 0;
  batch_norm->synchronise([&](const Tensor&) { ++calls; });
  batch_norm(torch::randn({4, 3})).square().sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(batch_norm->weight.grad().defined());
}

// The variance survives a mean that is 1e4 times as large as the deviation.
TEST(BatchNorm, KeepsTheVarianceBesideALargeMean) {
  BatchNorm batch_norm(2, BatchNormOptions{.eps = 0, .momentum = 1.0});
  batch_norm->synchronise([](const Tensor&) {});
  torch::manual_seed(2);
  const auto x = torch::randn({50, 2, 10, 10}).add_(1e4);
  batch_norm(x);
  const auto expected = x.to(torch::kFloat64).transpose(0, 1).flatten(1).var(1);
  expect_close(batch_norm->running_var, expected);
}

TEST(BatchNorm, NormalisesHalfPrecisionInFp32) {
  torch::manual_seed(3);
  const auto x = torch::randn({8, 4, 5}).to(torch::kBFloat16);
  for (const bool synchronised : {false, true}) {
    BatchNorm batch_norm(4);
    if (synchronised) batch_norm->synchronise([](const Tensor&) {});
    const auto input = x.clone().requires_grad_();
    const auto y = batch_norm(input);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.square().sum().backward();
    EXPECT_EQ(input.grad().scalar_type(), torch::kBFloat16);
    EXPECT_EQ(batch_norm->weight.grad().scalar_type(), torch::kFloat32);
    batch_norm->weight.set_data(batch_norm->weight.to(torch::kBFloat16));
    EXPECT_EQ(batch_norm(input).scalar_type(), torch::kBFloat16);
    const auto wide = x.to(torch::kFloat32);
    expect_close(batch_norm->running_mean, wide.transpose(0, 1).flatten(1).mean(1) * 0.19);
  }
}

TEST(BatchNorm, LivesOnTheMetaDevice) {
  BatchNorm batch_norm(1 << 20, BatchNormOptions{}, torch::TensorOptions(torch::kMeta));
  EXPECT_TRUE(batch_norm->weight.is_meta());
  EXPECT_TRUE(batch_norm->num_batches_tracked.is_meta());
  EXPECT_EQ(batch_norm->running_var.numel(), 1 << 20);
}

TEST(BatchNorm, RefusesOneValuePerChannelAndOtherChannels) {
  BatchNorm batch_norm(3);
  batch_norm->synchronise([](const Tensor&) {});
  EXPECT_THROW(batch_norm(torch::randn({1, 3})), c10::ValueError);
  EXPECT_THROW(batch_norm(torch::randn({0, 3})), c10::ValueError);
  EXPECT_THROW(batch_norm(torch::randn({4, 2})), c10::ValueError);
  EXPECT_THROW(batch_norm(torch::randn({3})), c10::ValueError);
}

}  // namespace
}  // namespace tessera::nn
