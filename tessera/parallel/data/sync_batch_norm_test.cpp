#include "tessera/parallel/data/sync_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include <numeric>

#include "tessera/nn/batch_norm.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tests/support/ranks.h"
#include "tests/support/resnet.h"

namespace tessera::parallel {
namespace {

using torch::Tensor;

constexpr Tolerance kTolerance{.absolute = 1e-5, .relative = 1e-5};

/// Rows of the whole batch that each rank has.
using Split = std::vector<int64_t>;

Tensor rows_of(const Tensor& whole, const Split& split, int rank) {
  int64_t begin = 0;
  for (int i = 0; i < rank; ++i) begin += split[static_cast<size_t>(i)];
  return whole.narrow(0, begin, split[static_cast<size_t>(rank)]);
}

/// A batch norm on rank `axis.rank()`'s rows equals LibTorch's on all rows, over several steps.
void expect_whole_batch(const mesh::Axis& axis, const Split& split) {
  const int64_t rows = std::accumulate(split.begin(), split.end(), int64_t{0});
  nn::BatchNorm ours(6);
  torch::nn::BatchNorm2d whole(6);
  convert_sync_batchnorm(*ours, axis);
  torch::manual_seed(7);
  for (auto* module : {&ours->weight, &ours->bias}) module->data().normal_();
  whole->weight.data().copy_(ours->weight);
  whole->bias.data().copy_(ours->bias);
  for (int step = 0; step < 3; ++step) {
    // Ranks whose batches have different means: where averaging the ranks' variances would fail.
    const auto batch =
        (torch::randn({rows, 6, 4, 3}) + torch::arange(rows).view({rows, 1, 1, 1}) * 0.3)
            .requires_grad_();
    const auto scale = torch::randn({rows, 6, 4, 3});
    const auto mine = rows_of(batch.detach(), split, axis.rank()).clone().requires_grad_();
    CollectiveCounter counter(axis);
    const auto y = ours(mine), expected = whole(batch);
    EXPECT_EQ(counter.counts().all_reduce, axis.size() > 1 ? 1 : 0);
    (y * rows_of(scale, split, axis.rank())).sum().backward();
    (expected * scale).sum().backward();
    EXPECT_EQ(counter.counts().all_reduce, axis.size() > 1 ? 2 : 0);
    expect_close(y, rows_of(expected, split, axis.rank()), kTolerance);
    expect_close(mine.grad(), rows_of(batch.grad(), split, axis.rank()), kTolerance);
  }
  axis.all_reduce(ours->weight.grad()).wait();
  axis.all_reduce(ours->bias.grad()).wait();
  expect_close(ours->weight.grad(), whole->weight.grad(), kTolerance);
  expect_close(ours->bias.grad(), whole->bias.grad(), kTolerance);
  expect_close(ours->running_mean, whole->running_mean, kTolerance);
  expect_close(ours->running_var, whole->running_var, kTolerance);
  EXPECT_EQ(ours->num_batches_tracked.item<int64_t>(), 3);

  ours->eval(), whole->eval();
  CollectiveCounter counter(axis);
  const auto x = torch::randn({1 + axis.rank(), 6, 2, 2});  // of any size: ranks do not meet
  expect_close(ours(x), whole(x), kTolerance);
  EXPECT_EQ(counter.counts().all_reduce, 0);
}

class SyncBatchNormTest : public RankTest {};

TEST_P(SyncBatchNormTest, EvenBatchesEqualTheWholeBatch) {
  on_ranks(GetParam(), [](const mesh::Axis& axis) {
    expect_whole_batch(axis, Split(static_cast<size_t>(axis.size()), 3));
  });
}

TEST_P(SyncBatchNormTest, UnevenBatchesEqualTheWholeBatch) {
  on_ranks(GetParam(), [](const mesh::Axis& axis) {
    Split split{5, 1, 2, 7};
    split.resize(static_cast<size_t>(axis.size()));
    expect_whole_batch(axis, split);
  });
}

TEST_P(SyncBatchNormTest, AnEmptyBatchOfOneRankEqualsTheWholeBatch) {
  on_ranks(GetParam(), [](const mesh::Axis& axis) {
    Split split{4, 0, 3, 1};
    split.resize(static_cast<size_t>(axis.size()));
    expect_whole_batch(axis, split);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SyncBatchNormTest, ::testing::Values(1, 2, 3, 4));

/// Mean loss of a global batch of which these are this rank's rows; leaves gradients.
double backward(testing::ResNet& net, const Tensor& images, const Tensor& labels,
                int64_t global_batch, const mesh::Axis& axis) {
  const auto loss = at::cross_entropy_loss(net.forward(images), labels, {}, at::Reduction::Sum) /
                    static_cast<double>(global_batch);
  loss.backward();
  const auto total = loss.detach().clone();
  axis.all_reduce(total).wait();
  return total.item<double>();
}

class ResNetTest : public ::testing::TestWithParam<Placement> {};

// ResNet-20, four ranks with uneven batches, one of them empty: the losses of one rank with the
// whole batch.
TEST_P(ResNetTest, FourUnevenRanksEqualOneRank) {
  const auto placement = GetParam();
  const bool sharded = placement == Placement::full_shard;
  const mesh::MeshShape shape{.dp_replicate = sharded ? 1 : 4, .dp_shard = sharded ? 4 : 1};
  on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
    constexpr double kLearningRate = 0.05;
    const Split split{3, 0, 6, 2};
    testing::ResNet net(testing::resnet20_shape()), whole(testing::resnet20_shape());
    testing::initialise(net, /*seed=*/3);
    testing::initialise(whole, /*seed=*/3);
    EXPECT_EQ(convert_sync_batchnorm(net, mesh), 21);
    const auto units =
        make_units(net, {.kind = UnitRuleKind::by_class, .classes = {"ResNetBlock"}});
    const auto& axis = mesh.world();
    auto parallel = parallelise(net, units, DataAxes::of(mesh),
                                {.unit = {.placement = placement}, .gradient_divide_factor = 1});
    torch::manual_seed(11);
    for (int step = 0; step < 4; ++step) {
      const auto images = torch::randn({11, 3, 8, 8});
      const auto labels = torch::randint(0, 10, {11}, torch::kInt64);
      const double expected = backward(whole, images, labels, 11, mesh::Axis());
      const double actual = backward(net, rows_of(images, split, axis.rank()),
                                     rows_of(labels, split, axis.rank()), 11, axis);
      EXPECT_NEAR(actual, expected, 1e-5) << "step " << step;
      parallel.finish_backward();
      const torch::NoGradGuard no_grad;
      for (const auto& slice : parallel.slices()) {
        slice.parameter.sub_(slice.gradient, kLearningRate);
      }
      parallel.finish_step();
      for (auto& parameter : whole.parameters()) {
        parameter.sub_(parameter.grad(), kLearningRate);
        parameter.grad().zero_();
      }
    }
    const auto& channel = mesh.axis({"dp_replicate", "dp_shard"}, {.channel = "batch_norm"});
    EXPECT_EQ(channel.counters().total().calls, 4 * 21 * 2);
    const auto buffers = whole.named_buffers();
    for (const auto& item : net.named_buffers()) {
      expect_close(item.value(), buffers[item.key()], {.absolute = 1e-4, .relative = 1e-4});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Placements, ResNetTest,
                         ::testing::Values(Placement::replicate, Placement::full_shard));

/// Holds one of torch's batch norms as a member, another in a Sequential.
struct UsersNet : torch::nn::Module {
  explicit UsersNet(bool with_member) {
    register_module("body", body);
    if (with_member) register_module("norm", norm);
  }
  torch::nn::Sequential body{
      {{"conv", torch::nn::Conv2d(3, 4, 1)}, {"norm", torch::nn::BatchNorm2d(4)}}};
  torch::nn::BatchNorm2d norm{4};
};

// The tensors stay the user's own, and the sequential calls the new module.
TEST(ConvertSyncBatchNorm, ReplacesTorchsInASequential) {
  on_ranks(2, [](const mesh::Axis& axis) {
    UsersNet net(false), plain(false);
    torch::manual_seed(5);
    const auto batch = torch::randn({7, 3, 2, 2});
    for (auto* each : {&net, &plain}) {
      each->named_parameters()["body.conv.weight"].data().fill_(0.5);
      each->named_parameters()["body.norm.weight"].data().fill_(1.5);
    }
    const auto parameters = net.named_parameters();
    EXPECT_EQ(convert_sync_batchnorm(net, axis), 1);
    for (const auto& item : net.named_parameters()) {
      EXPECT_TRUE(item.value().is_same(parameters[item.key()])) << item.key();
    }
    EXPECT_EQ(net.named_buffers().keys(), plain.named_buffers().keys());
    for (auto* each : {&net, &plain}) {
      each->named_parameters()["body.conv.bias"].data().fill_(0.1);
    }
    const Split split{2, 5};
    expect_close(net.body->forward(rows_of(batch, split, axis.rank())),
                 rows_of(plain.body->forward(batch), split, axis.rank()), kTolerance);
    EXPECT_EQ(axis.counters().all_reduce.calls, 1);
  });
}

std::string refusal(torch::nn::Module& model) {
  try {
    convert_sync_batchnorm(model, mesh::Axis());
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "(accepted)";
}

TEST(ConvertSyncBatchNorm, NamesTorchsThatItCannotReplaceAndChangesNothing) {
  UsersNet net(true);
  EXPECT_NE(refusal(net).find("norm: expected a batch norm that can be replaced"),
            std::string::npos);
  EXPECT_NE(refusal(net).find("tessera::nn::BatchNorm"), std::string::npos);
  EXPECT_TRUE(net.body->ptr(1)->as<torch::nn::BatchNorm2d>() != nullptr);

  // A batch norm in a sequential that is called through a holder as well.
  torch::nn::BatchNorm2d shared(4);
  torch::nn::Sequential sequential(shared);
  EXPECT_NE(refusal(*sequential).find("0: expected"), std::string::npos);

  torch::nn::Conv2d none(3, 4, 1);
  EXPECT_NE(refusal(*none).find("got none"), std::string::npos);
}

}  // namespace
}  // namespace tessera::parallel
