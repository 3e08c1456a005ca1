#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "tessera/optim/norm.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/schedule.h"

namespace tessera::optim {
namespace {

constexpr int64_t kSize = 5003;  // no multiple of a vector or a block

// The same 20 updates by torch::optim, with clipping by a factor before each.
template <typename TorchOptimizer, typename TorchOptions>
torch::Tensor torch_result(const torch::Tensor& start, const std::vector<torch::Tensor>& gradients,
                           const TorchOptions& options, double scale) {
  auto parameter = start.clone().set_requires_grad(true);
  TorchOptimizer optimizer(std::vector<torch::Tensor>{parameter}, options);
  for (const auto& gradient : gradients) {
    parameter.mutable_grad() = gradient * scale;
    optimizer.step();
  }
  return parameter.detach();
}

torch::Tensor our_result(const torch::Tensor& start, const std::vector<torch::Tensor>& gradients,
                         OptimizerOptions options, double learning_rate, double weight_decay, double scale) {
  const auto parameter = start.clone();
  const auto gradient = torch::empty_like(start);
  Optimizer optimizer({{parameter, gradient, weight_decay}}, options);
  for (const auto& value : gradients) {
    gradient.copy_(value);
    optimizer.step(learning_rate, scale);
  }
  return parameter;
}

class OptimizerTest : public ::testing::TestWithParam<double> {
 protected:
  void SetUp() override {
    torch::manual_seed(7);
    start_ = torch::randn({kSize});
    for (int i = 0; i < 20; ++i) gradients_.push_back(torch::randn({kSize}));
  }
  torch::Tensor start_;
  std::vector<torch::Tensor> gradients_;
};

TEST_P(OptimizerTest, AdamWEqualsTorch) {
  const auto expected = torch_result<torch::optim::AdamW>(
      start_, gradients_, torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).weight_decay(0.1), GetParam());
  const auto actual = our_result(start_, gradients_, {}, 1e-2, 0.1, GetParam());
  EXPECT_LT((expected - actual).abs().max().item<double>(), 2e-6);
  EXPECT_GT((start_ - actual).abs().max().item<double>(), 1e-2);
}

TEST_P(OptimizerTest, SgdWithMomentumEqualsTorch) {
  const auto expected = torch_result<torch::optim::SGD>(
      start_, gradients_, torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(0.1), GetParam());
  const auto actual =
      our_result(start_, gradients_, {.type = OptimizerType::sgd, .momentum = 0.9}, 1e-2, 0.1, GetParam());
  EXPECT_LT((expected - actual).abs().max().item<double>(), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(GradientScales, OptimizerTest, ::testing::Values(1.0, 0.25));

TEST(SquaredNorm, KeepsSmallTermsThatAnFp32SumLoses) {
  const std::vector<torch::Tensor> tensors{torch::full({3'000'001}, 1e-3f), torch::tensor({1000.f})};
  const double small = static_cast<double>(1e-3f);
  const double exact = 1e6 + 3'000'001 * small * small;
  EXPECT_NEAR(squared_norm(tensors) / exact, 1, 1e-12);
}

TEST(SquaredNorm, IsTheSameForAnyNumberOfThreads) {
  torch::manual_seed(1);
  const std::vector<torch::Tensor> tensors{torch::randn({1'000'003}), torch::randn({5})};
  at::set_num_threads(1);
  const double one = squared_norm(tensors);
  at::set_num_threads(2);
  EXPECT_EQ(squared_norm(tensors), one);
  at::set_num_threads(1);
}

TEST(Schedule, WarmsUpAndEndsAtTheMinimum) {
  ScheduleOptions options{.learning_rate = 1, .min_ratio = 0.1, .warmup_steps = 10, .total_steps = 110};
  for (const auto type : {ScheduleType::linear, ScheduleType::cosine, ScheduleType::wsd}) {
    options.type = type;
    EXPECT_DOUBLE_EQ(learning_rate(options, 0), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(options, 9), 1);
    EXPECT_DOUBLE_EQ(learning_rate(options, 10), 1);
    EXPECT_NEAR(learning_rate(options, 109), 0.1, 1e-12);
    EXPECT_NEAR(learning_rate(options, 1000), 0.1, 1e-12);
  }
  options.type = ScheduleType::constant;
  EXPECT_DOUBLE_EQ(learning_rate(options, 1000), 1);
}

TEST(Schedule, HalfWay) {
  ScheduleOptions options{.learning_rate = 2, .min_ratio = 0, .total_steps = 101};
  options.type = ScheduleType::linear;
  EXPECT_NEAR(learning_rate(options, 50), 1, 1e-12);
  options.type = ScheduleType::cosine;
  EXPECT_NEAR(learning_rate(options, 50), 1, 1e-12);
  options.type = ScheduleType::wsd;
  options.decay_steps = 11;
  EXPECT_DOUBLE_EQ(learning_rate(options, 89), 2);
  EXPECT_NEAR(learning_rate(options, 95), 1, 1e-12);
}

}  // namespace
}  // namespace tessera::optim
