#include "tessera/parallel/pipeline/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <thread>

#include "tessera/base/error.h"
#include "tessera/kernels/linear.h"
#include "tessera/schedule/check.h"
#include "tessera/schedule/generate.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

using schedule::Action;
using schedule::Family;
using schedule::Kind;
using torch::Tensor;

constexpr int64_t kWidth = 6;

/// Stages that differ in what they compute, from numbers that every rank knows.
struct Stages {
  explicit Stages(int count) {
    for (int stage = 0; stage < count; ++stage) {
      const auto values = torch::arange(kWidth * kWidth, torch::kFloat32).view({kWidth, kWidth});
      weights.push_back((values * (stage + 1)).sin().mul(0.7).requires_grad_());
      weights.back().mutable_grad() = torch::zeros({kWidth, kWidth});
    }
  }

  /// Micro-batch i has i + 1 rows.
  static Tensor rows(int micro_batch) {
    return (torch::arange((micro_batch + 1) * kWidth, torch::kFloat32) * 0.3)
        .cos()
        .view({micro_batch + 1, kWidth});
  }

  Tensor operator()(int stage, int micro_batch, const Tensor& input) {
    const auto x = stage == 0 ? rows(micro_batch) : input;
    const auto y = kernels::linear(x, weights[static_cast<size_t>(stage)]).tanh();
    return stage + 1 == static_cast<int>(weights.size()) ? y.square().sum() : y;
  }

  std::vector<Tensor> weights;
};

struct Whole {
  std::vector<double> losses;
  std::vector<Tensor> gradients;
};

Whole run_whole(int num_stages, int num_micro_batches) {
  Whole result;
  Stages stages(num_stages);
  for (int i = 0; i < num_micro_batches; ++i) {
    Tensor x;
    for (int stage = 0; stage < num_stages; ++stage) x = stages(stage, i, x);
    result.losses.push_back(x.item<double>());
    x.backward();
  }
  for (const auto& weight : stages.weights) result.gradients.push_back(weight.grad());
  return result;
}

std::vector<double> items(const std::vector<Tensor>& tensors) {
  std::vector<double> values;
  for (const auto& tensor : tensors) values.push_back(tensor.item<double>());
  return values;
}

class PipelineTest : public RankTest {};

TEST_P(PipelineTest, EveryScheduleComputesWhatOneRankDoes) {
  const int ranks = GetParam();
  on_mesh({.shape = {.pp = ranks}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto& facts : schedule::families()) {
      for (const int micro_batches : {2 * ranks, 2 * ranks + 1}) {
        const auto table = schedule::make_schedule(
            {.family = facts.family, .num_ranks = ranks, .num_micro_batches = micro_batches});
        Pipeline pipeline(table, mesh);
        const auto whole = run_whole(table.num_stages, micro_batches);
        for (int step = 0; step < 2; ++step) {  // the second posts its receives ahead
          Stages stages(table.num_stages);
          const auto losses = pipeline.train(std::ref(stages));
          EXPECT_EQ(items(losses), pipeline.has_last_stage() ? whole.losses : std::vector<double>())
              << table.name << " step " << step;
          for (int stage = 0; stage < table.num_stages; ++stage) {
            if (table.rank_of_stage[static_cast<size_t>(stage)] != mesh.rank()) continue;
            const auto index = static_cast<size_t>(stage);
            EXPECT_TRUE(
                torch::allclose(stages.weights[index].grad(), whole.gradients[index], 1e-5, 1e-6))
                << table.name << " step " << step << " stage " << stage;
          }
        }
        const auto peak = schedule::peak_activations(table)[static_cast<size_t>(mesh.rank())];
        EXPECT_EQ(static_cast<double>(pipeline.peak_in_flight()), peak) << table.name;
        EXPECT_LE(peak, table.peak_limit[static_cast<size_t>(mesh.rank())] + 1e-9);
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, PipelineTest, ::testing::Values(1, 2, 3, 4));

TEST(Pipeline, EvaluatesAnyNumberOfAnyShape) {
  on_mesh({.shape = {.pp = 2}}, [](const mesh::DeviceMesh& mesh) {
    Pipeline pipeline(
        schedule::make_schedule({.family = Family::zbv, .num_ranks = 2, .num_micro_batches = 4}),
        mesh);
    Stages stages(4);
    for (const int count : {3, 1, 5}) {
      const auto outputs = pipeline.evaluate(std::ref(stages), count);
      EXPECT_EQ(items(outputs),
                mesh.rank() == 0 ? run_whole(4, count).losses : std::vector<double>());
    }
  });
}

TEST(Pipeline, RefusesOtherShapesThanInTheFirstStep) {
  on_mesh({.shape = {.pp = 2}}, [](const mesh::DeviceMesh& mesh) {
    Pipeline pipeline(schedule::make_schedule({.num_ranks = 2, .num_micro_batches = 2}), mesh);
    Stages stages(2);
    pipeline.train(std::ref(stages));
    const auto other = [&](int stage, int micro_batch, const Tensor& input) {
      return stages(stage, stage == 0 ? micro_batch + 1 : 0, input);
    };
    try {
      pipeline.train(other);
      FAIL() << "expected an error";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(),
                  ::testing::HasSubstr("the output of stage 0 for micro-batch 0: expected [1, 6] "
                                       "Float as in the first step, got [2, 6] Float"));
    } catch (const c10::DistError& error) {  // the rank that waits for it
      EXPECT_EQ(mesh.rank(), 1);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("stage 1, forward of micro-batch 0 (1F0): "
                                                     "rank 1, axis pp/0>1: broadcast of"));
    }
  });
}

TEST(Pipeline, ALostRankIsToldWithWhatWasBeingDone) {
  const auto begin = std::chrono::steady_clock::now();
  on_mesh({.shape = {.pp = 3}, .killed = {1}}, [](const mesh::DeviceMesh& mesh) {
    Pipeline pipeline(schedule::make_schedule({.num_ranks = 3, .num_micro_batches = 4}), mesh);
    Stages stages(3);
    pipeline.train(std::ref(stages));
    const auto killed = [&](const Action& action) {
      if (mesh.rank() == 1 && action == Action{Kind::backward, 1, 1}) ::raise(SIGKILL);
    };
    try {
      pipeline.train(std::ref(stages), killed);
      FAIL() << "expected an error";
    } catch (const c10::DistError& error) {
      EXPECT_THAT(error.what(),
                  ::testing::ContainsRegex("^stage [02], (forward|backward) of micro-batch [0-3] "
                                           "\\([02][FB][0-3]\\): rank [02], axis pp.*>"));
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

/// Hands its input on after `seconds`, backward too.
struct Sleep : torch::autograd::Function<Sleep> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        double forward_seconds, double backward_seconds) {
    context->saved_data["backward"] = backward_seconds;
    std::this_thread::sleep_for(std::chrono::duration<double>(forward_seconds));
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(context->saved_data["backward"].toDouble()));
    return {gradients[0], Tensor(), Tensor()};
  }
};

/// The order and the bubble of ranks that sleep where others compute are those of the simulation.
class SleepingStages : public ::testing::TestWithParam<Family> {};

TEST_P(SleepingStages, TakeAsLongAsSimulated) {
  static constexpr double kForward = 0.04, kInput = 0.04, kWeight = 0.03;
  static constexpr int kRanks = 4, kMicroBatches = 8;
  on_mesh({.shape = {.pp = kRanks}}, [](const mesh::DeviceMesh& mesh) {
    const schedule::Times times{.forward = {kForward}, .input = {kInput}, .weight = {kWeight}};
    const auto table = schedule::make_schedule({.family = GetParam(),
                                                .num_ranks = kRanks,
                                                .num_micro_batches = kMicroBatches,
                                                .times = times});
    Pipeline pipeline(table, mesh);
    const auto& actions = table.ranks[static_cast<size_t>(mesh.rank())];
    const bool splits = std::ranges::any_of(
        actions, [](const auto& action) { return action.kind == Kind::backward_weight; });
    const auto parameter = torch::ones({4}).requires_grad_();
    const auto stage = [&](int index, int, const Tensor& input) {
      auto x = Sleep::apply(index == 0 ? parameter : input, kForward,
                            splits ? kInput : kInput + kWeight);
      if (const auto& deferred = autograd::DeferScope::current()) {
        deferred->add([] { std::this_thread::sleep_for(std::chrono::duration<double>(kWeight)); });
      }
      return index + 1 == table.num_stages ? x.sum() : x;
    };
    pipeline.train(stage);  // makes connections, agrees on shapes
    const auto simulation = schedule::simulate(table, times);
    /// How far the last run is from the simulation, as a share of its time; and how much of that
    /// may be the machine's, whose sleeps were longer than asked for.
    struct Deviation {
      double all = 1, of_machine = 0;
    };
    const auto deviation = [&]() -> Deviation {
      const auto& spans = pipeline.spans();
      const auto makespan = torch::tensor(spans.back().end, torch::kFloat64);
      mesh.world().all_reduce(makespan, comm::ReduceOp::max).wait();
      const double real = makespan.item<double>();
      double busy = 0, worst = std::abs(real / simulation.makespan - 1);
      for (size_t i = 0; i < spans.size(); ++i) {
        busy += spans[i].end - spans[i].start;
        const auto& expected = simulation.spans[static_cast<size_t>(mesh.rank())][i];
        worst = std::max(worst, std::abs(spans[i].start - expected.start) / simulation.makespan);
      }
      worst = std::max(worst, std::abs(1 - busy / real - simulation.bubble(mesh.rank())));
      const double longer = busy - simulation.busy[static_cast<size_t>(mesh.rank())];
      const auto sum = torch::tensor(longer / simulation.makespan, torch::kFloat64);
      mesh.world().all_reduce(sum).wait();
      const auto of_all = torch::tensor(worst, torch::kFloat64);
      mesh.world().all_reduce(of_all, comm::ReduceOp::max).wait();
      return {of_all.item<double>(), sum.item<double>()};
    };
    Deviation least;
    const auto begin = std::chrono::steady_clock::now();
    for (bool again = true; again;) {
      mesh.world().barrier();
      pipeline.train(stage);
      const auto found = deviation();
      if (found.all - found.of_machine < least.all - least.of_machine) least = found;
      const bool late = std::chrono::steady_clock::now() - begin > std::chrono::seconds(20);
      const auto stop = torch::tensor(late || found.all <= 0.05 ? 1 : 0);
      mesh.world().all_reduce(stop, comm::ReduceOp::max).wait();
      again = stop.item<int64_t>() == 0;
    }
    EXPECT_LE(least.all - least.of_machine, 0.05)
        << table.name << ": " << least.all << ", of the machine " << least.of_machine;
  });
}
INSTANTIATE_TEST_SUITE_P(All, SleepingStages,
                         ::testing::Values(Family::one_f_one_b, Family::interleaved, Family::zbv));

}  // namespace
}  // namespace tessera::parallel
