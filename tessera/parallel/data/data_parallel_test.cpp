#include "tessera/parallel/data/data_parallel.h"

#include <gtest/gtest.h>

#include "tessera/nn/layers.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

using nn::Linear;

/// Three linear layers, of which the last may be left unused.
struct Net : nn::Hookable {
  Net() {
    for (auto* layer : {&first, &second, &unused})
      register_module("layer" + std::to_string(children().size()), *layer);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_();
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(first(x).tanh()); }
  std::vector<UnitModules> units() {
    return {{"first", {first.get()}}, {"second", {second.get()}}, {"unused", {unused.get()}}};
  }
  Linear first{7, 5, true}, second{5, 3, true}, unused{2, 2};
};

/// Gradients of the plain net for the whole batch, by name.
std::map<std::string, torch::Tensor> plain_gradients(const torch::Tensor& batch) {
  Net net;
  (net.forward(batch).square().sum() / batch.size(0)).backward();
  std::map<std::string, torch::Tensor> gradients;
  for (const auto& item : net.named_parameters()) gradients[item.key()] = item.value().grad();
  return gradients;
}

class ReplicateTest : public RankTest {};

// Uneven rows per rank and uneven micro-batches: the result is that of the whole batch.
TEST_P(ReplicateTest, GradientsEqualThoseOfTheWholeBatch) {
  on_ranks(GetParam(), [](const mesh::Axis& axis) {
    torch::manual_seed(5);
    const int64_t rows = 3 * axis.size() + 2;
    const auto batch = torch::randn({rows, 7});
    const auto expected = plain_gradients(batch);
    Net net;
    auto replicated = replicate(net, net.units(), axis);
    const int64_t begin = axis.rank() * rows / axis.size(),
                  end = (axis.rank() + 1) * rows / axis.size();
    for (int step = 0; step < 2; ++step) {
      const int64_t middle = begin + 1;
      replicated.set_requires_gradient_sync(false);
      (net.forward(batch.slice(0, begin, middle)).square().sum() / rows).backward();
      replicated.set_requires_gradient_sync(true);
      (net.forward(batch.slice(0, middle, end)).square().sum() / rows).backward();
      replicated.finish_backward();
      for (const auto& item : net.named_parameters()) {
        const auto& wanted = expected.at(item.key());
        expect_close(item.value().grad(),
                     wanted.defined() ? wanted : torch::zeros_like(item.value()),
                     {.absolute = 1e-5, .relative = 1e-5});
      }
      EXPECT_EQ(replicated.parameters_without_gradient(),
                std::vector<std::string>{"layer2.weight"});
      replicated.zero_gradients();
    }
    // One collective per unit and step, however many micro-batches.
    EXPECT_EQ(axis.counters().all_reduce.calls, axis.size() > 1 ? 6 : 0);
  });
}

TEST_P(ReplicateTest, ParametersThatDifferAreNamed) {
  on_ranks(GetParam(), [](const mesh::Axis& axis) {
    Net net;
    if (axis.rank() == 1) net.second->bias.detach()[2] += 1;
    if (axis.size() == 1) {
      EXPECT_NO_THROW(replicate(net, net.units(), axis));
      return;
    }
    try {
      replicate(net, net.units(), axis);
      FAIL() << "expected an error";
    } catch (const c10::ValueError& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("layer1.bias"), std::string::npos);
      EXPECT_NE(std::string(error.what_without_backtrace()).find("rank 1"), std::string::npos);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReplicateTest, ::testing::Values(1, 2, 3));

TEST(FlatBuffer, HoldsParametersAsAlignedViewsDecayedFirst) {
  const std::vector<FlatBuffer::Named> parameters{
      {"norm", torch::ones({5}, torch::requires_grad())},
      {"weight", torch::full({3, 7}, 2.f, torch::requires_grad())}};
  const FlatBuffer buffer(parameters, [](const auto& named) { return named.second.dim() > 1; });
  EXPECT_EQ(buffer.entries()[0].name, "weight");
  EXPECT_EQ(buffer.decayed(), 32);
  EXPECT_EQ(buffer.data().numel(), 48);
  EXPECT_EQ(buffer.data().sum().item<float>(), 5 + 42);
  buffer.data().fill_(3);
  EXPECT_EQ(parameters[0].second.sum().item<float>(), 15);
  parameters[1].second.square().sum().backward();
  EXPECT_EQ(buffer.gradient().sum().item<float>(), 21 * 6);
}

TEST(Replicate, AParameterInNoUnitIsNamed) {
  Net net;
  auto units = net.units();
  units.pop_back();
  try {
    replicate(net, units, mesh::Axis());
    FAIL() << "expected an error";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find("layer2.weight"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::parallel
