#include "tessera/parallel/data/data_parallel.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <map>

#include "tessera/base/error.h"
#include "tessera/nn/layers.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

using nn::Linear;

/// Layers of uneven sizes, of which the last may be left unused.
struct TestNet : nn::Hookable {
  explicit TestNet(const torch::TensorOptions& options = {}, bool with_unused = true)
      : first(7, 50, true, options),
        second(50, 9, true, options),
        third(9, 3, true, options),
        unused(2, 2, false, options) {
    for (auto* layer : {&first, &second, &third}) {
      register_module("layer" + std::to_string(children().size()), *layer);
    }
    if (with_unused) register_module("layer3", unused);
    if (first->weight.is_meta()) return;
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.3);
  }
  torch::Tensor forward(const torch::Tensor& x) { return third(second(first(x).tanh()).tanh()); }
  std::vector<UnitModules> units() {
    std::vector<UnitModules> units{
        {"first", {first.get()}}, {"second", {second.get()}}, {"third", {third.get()}}};
    if (children().size() == 4) units.push_back({"unused", {unused.get()}});
    return units;
  }
  Linear first, second, third, unused;
};

constexpr double kLearningRate = 0.1;
constexpr int kNumSteps = 3;

/// Values after a few steps on the whole batch of the plain net.
std::map<std::string, torch::Tensor> plain_result(const torch::Tensor& batch) {
  TestNet net;
  torch::optim::SGD optimizer(net.parameters(),
                              torch::optim::SGDOptions(kLearningRate).momentum(0.9));
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    (net.forward(batch).square().sum() / batch.size(0)).backward();
    optimizer.step();
  }
  std::map<std::string, torch::Tensor> values;
  for (const auto& item : net.named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

/// This rank's rows of a batch that ranks cannot share evenly.
struct Rows {
  torch::Tensor all, mine;
};
Rows uneven_rows(const mesh::Axis& axis) {
  torch::manual_seed(5);
  const int64_t rows = 3 * axis.size() + 2;
  const auto all = torch::randn({rows, 7});
  return {all,
          all.slice(0, axis.rank() * rows / axis.size(), (axis.rank() + 1) * rows / axis.size())};
}

/// The same steps data parallel, in two uneven micro-batches.
void train(TestNet& net, DataParallel& model, const Rows& rows, bool reduce_each) {
  torch::optim::SGD optimizer(model.parameters(),
                              torch::optim::SGDOptions(kLearningRate).momentum(0.9));
  model.set_gradient_divide_factor(1);
  const auto total = static_cast<double>(rows.all.size(0));
  for (int step = 0; step < kNumSteps; ++step) {
    for (const bool last : {false, true}) {
      model.set_requires_gradient_sync(last || reduce_each);
      model.set_is_last_backward(last);
      const auto part = last ? rows.mine.slice(0, 1) : rows.mine.slice(0, 0, 1);
      (net.forward(part).square().sum() / total).backward();
      model.finish_backward();
    }
    optimizer.step();
    model.finish_step();
  }
}

void expect_result(const TestNet& net, DataParallel& model, const torch::Tensor& batch,
                   Tolerance tolerance = {.absolute = 1e-5, .relative = 1e-5}) {
  model.unshard();
  for (const auto& [name, expected] : plain_result(batch)) {
    expect_close(net.named_parameters()[name].detach().to(torch::kFloat32), expected, tolerance);
  }
  model.reshard();
}

const std::map<std::string, UnitOptions> kKinds{
    {"replicate", {.placement = Placement::replicate}},
    {"shard_optimizer", {.placement = Placement::shard_optimizer}},
    {"shard_gradients", {.placement = Placement::shard_gradients}},
    {"full_shard", {.placement = Placement::full_shard}},
    {"kept_after_forward", {.placement = Placement::full_shard, .reshard_after_forward = false}}};

class PlacementsTest : public ::testing::TestWithParam<std::tuple<int, std::string, bool>> {};

// Uneven rows per rank and uneven micro-batches: the result is that of the whole batch.
TEST_P(PlacementsTest, StepsEqualThoseOfTheWholeBatch) {
  const auto& [ranks, kind, reduce_each] = GetParam();
  on_mesh({.shape = {.dp_shard = ranks}},
          [&kind = kind, &reduce_each = reduce_each](const mesh::DeviceMesh& mesh) {
            const auto& axis = mesh.axis("dp_shard");
            for (const auto prefetch :
                 {BackwardPrefetch::none, BackwardPrefetch::pre, BackwardPrefetch::post}) {
              TestNet net;
              auto model = parallelise(net, net.units(), DataAxes::of(mesh),
                                       {.unit = kKinds.at(kind),
                                        .backward_prefetch = prefetch,
                                        .forward_prefetch = prefetch != BackwardPrefetch::none});
              const auto rows = uneven_rows(axis);
              train(net, model, rows, reduce_each);
              expect_result(net, model, rows.all);
              EXPECT_LE(model.memory().peak_gathered_units, 3);
            }
          });
}

INSTANTIATE_TEST_SUITE_P(Kinds, PlacementsTest,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values("replicate", "shard_optimizer",
                                                              "shard_gradients", "full_shard",
                                                              "kept_after_forward"),
                                            ::testing::Bool()));

class HybridTest : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(HybridTest, TwoByTwoEqualsTheWholeBatch) {
  const auto& [kind, reduce_each] = GetParam();
  on_mesh({.shape = {.dp_replicate = 2, .dp_shard = 2}},
          [&kind = kind, &reduce_each = reduce_each](const mesh::DeviceMesh& mesh) {
            TestNet net;
            auto model =
                parallelise(net, net.units(), DataAxes::of(mesh), {.unit = kKinds.at(kind)});
            const auto rows = uneven_rows(mesh.axis({"dp_replicate", "dp_shard"}));
            train(net, model, rows, reduce_each);
            expect_result(net, model, rows.all);
          });
}

INSTANTIATE_TEST_SUITE_P(Kinds, HybridTest,
                         ::testing::Combine(::testing::Values("replicate", "shard_optimizer",
                                                              "shard_gradients", "full_shard"),
                                            ::testing::Bool()));

TEST(Reshard, ToASmallerWorld) {
  on_mesh({.shape = {.dp_shard = 4}}, [](const mesh::DeviceMesh& mesh) {
    TestNet net;
    auto model =
        parallelise(net, net.units(), DataAxes::of(mesh, 2),
                    {.unit = {.placement = Placement::full_shard, .reshard_after_forward = 2},
                     .backward_prefetch = BackwardPrefetch::none});
    const auto rows = uneven_rows(mesh.axis("dp_shard"));
    const auto inner = mesh.axis("dp_shard", {.split = 2});
    const auto before = inner.counters().all_gather.calls;
    train(net, model, rows, true);
    // Each backward gathers among two ranks, but for the last unit (which the first backward does
    // not know yet) and the unused one.
    EXPECT_EQ(inner.counters().all_gather.calls - before, 2 * 2 * kNumSteps + 1);
    expect_result(net, model, rows.all);
  });
}

TEST(Reshard, AWorldThatDoesNotDivideIsAnError) {
  on_mesh({.shape = {.dp_shard = 3}}, [](const mesh::DeviceMesh& mesh) {
    TestNet net;
    EXPECT_THROW(fully_shard(net, mesh, {.unit = {.reshard_after_forward = 2}}), UserError);
    EXPECT_THROW(fully_shard(net, mesh, {.overrides = {{"nothing*", {}}}}), UserError);
  });
}

TEST(FullShard, CollectivesPerStep) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const bool reshards : {true, false}) {
      TestNet net;
      auto units = net.units();
      auto model = parallelise(net, units, DataAxes::of(mesh),
                               {.unit = {.reshard_after_forward = reshards}});
      model.slices();  // as for an optimizer
      const auto& gather = mesh.axis("dp_shard");
      const auto& reduce = mesh.axis("dp_shard", {.channel = "reduce"});
      const auto step = [&] {
        net.forward(torch::ones({2, 7})).sum().backward();
        model.finish_backward();
        model.finish_step();
      };
      step();  // after which it is known that `unused` is never used
      const auto gathers = gather.counters().all_gather,
                 reductions = reduce.counters().reduce_scatter;
      step();
      int64_t bytes = 0;
      for (const auto& unit : model.units()) bytes += unit.buffers()[0].size() * 4;
      EXPECT_EQ(reduce.counters().reduce_scatter.calls - reductions.calls, 4);
      EXPECT_EQ(reduce.counters().reduce_scatter.bytes - reductions.bytes, bytes);
      // Forward: three units; backward: but for the last.
      EXPECT_EQ(gather.counters().all_gather.calls - gathers.calls, reshards ? 5 : 3);
    }
  });
}

// A table's gradient needs the ids alone.
TEST(FullShard, ATableIsNotGatheredForItsBackward) {
  struct Net : nn::Hookable {
    Net() : table(11, 6), inner(6, 5, true), outer(5, 2, true) {
      register_module("table", table), register_module("inner", inner);
      register_module("outer", outer);
      torch::manual_seed(3);
      const torch::NoGradGuard no_grad;
      for (auto& parameter : parameters()) parameter.normal_(0, 0.3);
    }
    torch::Tensor loss() {
      return outer(inner(table(torch::tensor({1, 7, 7, 10}))).tanh()).square().sum();
    }
    nn::Embedding table;
    Linear inner, outer;
  };
  Net plain;
  plain.loss().backward();
  double squares = 0;
  for (const auto& parameter : plain.parameters()) {
    squares += parameter.grad().square().sum().item<double>();
  }
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    Net net;
    std::vector<UnitModules> units{
        {"table", {net.table.get()}}, {"inner", {net.inner.get()}}, {"outer", {net.outer.get()}}};
    auto model = parallelise(net, units, DataAxes::of(mesh), {.unit = {}});
    model.slices();  // as for an optimizer
    const auto& axis = mesh.axis("dp_shard");
    for (int step = 0; step < 2; ++step) {
      const auto gathers = axis.counters().all_gather.calls;
      net.loss().backward();
      model.finish_backward();
      // Forward: three units; backward: the one that is neither the table nor the last.
      EXPECT_EQ(axis.counters().all_gather.calls - gathers, 4);
      EXPECT_NEAR(model.gradient_norm().norm / std::sqrt(squares), 1, 1e-5);
      model.finish_step();
    }
  });
}

TEST(FullShard, StatesShrinkWithTheRanksAndGatheredMemoryIsBounded) {
  on_mesh({.shape = {.dp_shard = 3}}, [](const mesh::DeviceMesh& mesh) {
    TestNet net(/*options=*/{}, /*with_unused=*/false);
    auto model = parallelise(net, net.units(), DataAxes::of(mesh), {.max_gathered_units = 2});
    int64_t whole = 0, largest = 0;
    for (const auto& unit : model.units()) {
      whole += unit.buffers()[0].size() * 4;
      largest = std::max(largest, unit.buffers()[0].size() * 4);
    }
    const auto rows = uneven_rows(mesh.axis("dp_shard"));
    train(net, model, rows, true);
    EXPECT_EQ(model.memory().parameters, whole / 3);
    EXPECT_LE(model.memory().peak_gathered_units, 2);
    EXPECT_LE(model.memory().peak_gathered, 2 * largest);
    EXPECT_LE(model.memory().peak_gradients, 2 * largest + whole / 3);
  });
}

class PolicyTest : public ::testing::TestWithParam<std::string> {};

TEST_P(PolicyTest, Bf16ComputesWithFp32Slices) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    auto unit = kKinds.at(GetParam());
    unit.mixed_precision = {.param_dtype = torch::kBFloat16,
                            .reduce_dtype = torch::kFloat32,
                            .output_dtype = torch::kFloat32};
    TestNet net;
    auto model = parallelise(net, net.units(), DataAxes::of(mesh), {.unit = unit});
    nn::Hooks look;
    look.before_backward = [&] {
      EXPECT_EQ(net.first->weight.scalar_type(), torch::kBFloat16);
      EXPECT_EQ(net.first->weight.grad().scalar_type(), torch::kFloat32);
    };
    net.first->add_hooks(look);
    for (const auto& slice : model.slices()) {
      EXPECT_EQ(slice.parameter.scalar_type(), torch::kFloat32);
      EXPECT_EQ(slice.gradient.scalar_type(), torch::kFloat32);
    }
    const auto rows = uneven_rows(mesh.axis("dp_shard"));
    const Rows requiring{rows.all, rows.mine.clone().requires_grad_()};
    train(net, model, requiring, true);
    expect_result(net, model, rows.all, {.absolute = 2e-2, .relative = 2e-2});
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, PolicyTest,
                         ::testing::Values("replicate", "shard_optimizer", "shard_gradients",
                                           "full_shard"));

TEST(FrozenParameters, CostNeitherGradientNorState) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto& [name, unit] : kKinds) {
      TestNet net;
      net.first->weight.set_requires_grad(false);
      net.second->weight.set_requires_grad(false);
      const auto before = net.second->weight.detach().clone();
      auto model = parallelise(net, net.units(), DataAxes::of(mesh), {.unit = unit});
      train(net, model, uneven_rows(mesh.axis("dp_shard")), true);
      int64_t trained = 0;
      for (const auto& slice : model.slices()) trained += slice.parameter.numel();
      EXPECT_LE(trained, 64 + 64 + 64 + 32 + 3 * 32) << name;  // biases, third and unused, padded
      EXPECT_LE(model.memory().peak_gradients, (64 + 32 + 64 + 32 + 32) * 4 * 2) << name;
      model.unshard();
      EXPECT_TRUE(torch::equal(net.second->weight, before)) << name;
      EXPECT_FALSE(net.second->weight.grad().defined()) << name;
    }
  });
}

TEST(Start, OnTheMetaDeviceEachRankFillsItsSlices) {
  on_mesh({.shape = {.dp_shard = 3}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto& [name, unit] : kKinds) {
      const TestNet values;
      TestNet net(torch::device(torch::kMeta));
      auto model = parallelise(net, net.units(), DataAxes::of(mesh), {.unit = unit});
      int64_t filled = 0;
      model.fill([&](const std::string& parameter, int64_t begin, const torch::Tensor& part) {
        filled += part.numel();
        part.copy_(values.named_parameters()[parameter].flatten().narrow(0, begin, part.numel()));
      });
      if (unit.placement == Placement::full_shard) {
        EXPECT_LT(filled, 893 / 2);
      }
      const auto rows = uneven_rows(mesh.axis("dp_shard"));
      train(net, model, rows, false);
      expect_result(net, model, rows.all);
    }
  });
}

TEST(Start, TheValuesOfRankZeroCount) {
  on_mesh({.shape = {.dp_replicate = 2, .dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    TestNet net(mesh.rank() == 0 ? torch::TensorOptions() : torch::device(torch::kMeta));
    auto model = parallelise(net, net.units(), DataAxes::of(mesh), {.sync_module_states = true});
    const auto rows = uneven_rows(mesh.world());
    train(net, model, rows, false);
    expect_result(net, model, rows.all);
  });
}

/// The line of the ValueError that `body` throws.
template <typename Body>
std::string value_error(const Body& body) {
  try {
    body();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Start, ModelsThatDifferAreNamed) {
  on_mesh({.shape = {.dp_shard = 3}}, [](const mesh::DeviceMesh& mesh) {
    TestNet net;
    if (mesh.rank() == 1) net.second->bias.detach()[2] += 1;
    EXPECT_THAT(
        value_error([&] { parallelise(net, net.units(), DataAxes::of(mesh)); }),
        ::testing::AllOf(::testing::HasSubstr("layer1.bias"), ::testing::HasSubstr("rank 1")));
    TestNet other;
    auto units = other.units();
    if (mesh.rank() == 2) std::swap(units[0], units[1]);
    EXPECT_THAT(
        value_error([&] { parallelise(other, units, DataAxes::of(mesh)); }),
        ::testing::AllOf(::testing::HasSubstr("unit first"), ::testing::HasSubstr("rank 2")));
  });
}

TEST(Start, FilledValuesThatDifferAreNamed) {
  on_mesh({.shape = {.dp_replicate = 2, .dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    TestNet net(torch::device(torch::kMeta));
    auto model = parallelise(net, net.units(), DataAxes::of(mesh));
    const auto fill = [&](const std::string& name, int64_t, const torch::Tensor& part) {
      part.fill_(mesh.rank() == 3 && name == "layer1.weight" ? 1 : 2);
    };
    const auto line = value_error([&] { model.fill(fill); });
    // Ranks 1 and 3 hold the same slice, ranks 0 and 2 the other; all are told.
    EXPECT_THAT(line, ::testing::AllOf(::testing::HasSubstr("layer1.weight"),
                                       ::testing::HasSubstr("on rank 1, rank 3")));
  });
}

TEST(Start, AParameterInNoUnitIsNamed) {
  TestNet net;
  auto units = net.units();
  units.pop_back();
  EXPECT_THAT(value_error([&] { parallelise(net, units, DataAxes::of(mesh::DeviceMesh())); }),
              ::testing::HasSubstr("layer3.weight"));
}

TEST(Gradients, NormUnusedParametersAndNonFiniteUnits) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto& [name, unit] : kKinds) {
      const auto rows = uneven_rows(mesh.axis("dp_shard"));
      TestNet plain;
      (plain.forward(rows.all).sum() / rows.all.size(0)).backward();
      double squares = 0;
      for (const auto& parameter : plain.parameters()) {
        if (parameter.grad().defined()) squares += parameter.grad().square().sum().item<double>();
      }
      TestNet net;
      auto model = parallelise(net, net.units(), DataAxes::of(mesh),
                               {.unit = unit, .gradient_divide_factor = 1});
      model.slices();  // as for an optimizer
      (net.forward(rows.mine).sum() / rows.all.size(0)).backward();
      model.finish_backward();
      EXPECT_NEAR(model.gradient_norm().norm / std::sqrt(squares), 1, 1e-5) << name;
      EXPECT_EQ(model.gradient_norm().nonfinite_unit, "") << name;
      EXPECT_EQ(model.parameters_without_gradient(), std::vector<std::string>{"layer3.weight"})
          << name;
      model.finish_step();
      const double poison = mesh.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1;
      (net.forward(rows.mine) * poison).sum().backward();
      model.finish_backward();
      EXPECT_EQ(model.gradient_norm().nonfinite_unit, "third") << name;
      model.finish_step();
    }
  });
}

TEST(Gradients, AreTheMeanOverRanksUnlessTold) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto& [name, unit] : kKinds) {
      TestNet net;
      auto model = parallelise(net, net.units(), DataAxes::of(mesh), {.unit = unit});
      // The gradient of third's bias is the number of rows: 1 and 3.
      net.forward(torch::ones({mesh.rank() == 0 ? 1 : 3, 7})).sum().backward();
      model.finish_backward();
      double largest = 0;
      for (const auto& slice : model.units()[2].buffers()) {
        int64_t decayed = 0;
        for (const auto& group : slice.groups()) {
          if (group.decays) decayed = group.end;
        }
        const auto begin = std::max<int64_t>(0, decayed - slice.slice_begin());
        if (begin >= slice.slice_size()) continue;
        largest = slice.gradient_of_slice().slice(0, begin).max().item<double>();
      }
      const auto sum = torch::tensor({largest}, torch::kFloat64);
      mesh.axis("dp_shard").all_reduce(sum, comm::ReduceOp::max).wait();
      EXPECT_EQ(sum.item<double>(), 2) << name;
    }
  });
}

/// How often `body` clones a tensor.
int64_t clones_in(const std::function<void()>& body) {
  static int64_t count;
  count = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function)
                                     -> std::unique_ptr<at::ObserverContext> {
        if (std::string(function.name()) == "aten::clone") ++count;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  body();
  at::removeCallback(handle);
  return count;
}

// On one rank there is no sum to keep apart: micro-batches add to one buffer.
TEST(Gradients, OfMicroBatchesAreNotCopiedOnOneRank) {
  on_mesh({.shape = {.dp_shard = 1}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto placement : {Placement::replicate, Placement::full_shard}) {
      TestNet net;
      auto model =
          parallelise(net, net.units(), DataAxes::of(mesh), {.unit = {.placement = placement}});
      const auto backward = [&] {
        net.forward(torch::ones({2, 7})).sum().backward();
        model.finish_backward();
      };
      const auto first = clones_in(backward);
      const auto once = model.slices()[0].gradient.clone();
      EXPECT_EQ(clones_in(backward), first);
      expect_close(model.slices()[0].gradient, 2 * once);
    }
  });
}

TEST(Overrides, AUnitMayDiffer) {
  on_mesh({.shape = {.dp_shard = 3}}, [](const mesh::DeviceMesh& mesh) {
    TestNet net;
    auto model = parallelise(net, net.units(), DataAxes::of(mesh),
                             {.overrides = {{"sec*", {.placement = Placement::replicate}},
                                            {"third", {.placement = Placement::shard_gradients}}}});
    const auto rows = uneven_rows(mesh.axis("dp_shard"));
    train(net, model, rows, false);
    expect_result(net, model, rows.all);
  });
}

TEST(Offload, SlicesOnTheHostChangeNothing) {
  for (const OffloadPolicy& policy :
       {OffloadPolicy{.offload_params = true}, OffloadPolicy{.offload_optimizer = true},
        OffloadPolicy{.offload_optimizer = true, .fraction = 0.3}}) {
    on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
      TestNet net;
      auto model = parallelise(net, net.units(), DataAxes::of(mesh), {.offload = policy});
      const auto rows = uneven_rows(mesh.axis("dp_shard"));
      train(net, model, rows, true);
      expect_result(net, model, rows.all);
    });
  }
}

TEST(Offload, AFractionIsTheLastUnits) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    TestNet net;
    const auto model = parallelise(net, net.units(), DataAxes::of(mesh),
                                   {.offload = {.offload_optimizer = true, .fraction = 0.3}});
    std::vector<bool> offloaded;
    for (const auto& unit : model.units()) {
      offloaded.push_back(unit.buffers().front().options().offloaded);
    }
    EXPECT_FALSE(offloaded.front());
    EXPECT_TRUE(offloaded.back());
    EXPECT_TRUE(std::ranges::is_sorted(offloaded));
  });
}

}  // namespace
}  // namespace tessera::parallel
