// Loops as people port them line by line, beside the same loops in plain LibTorch: where calls stand elsewhere than in the docs' loop.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/nn/dropout.h"
#include "tessera/train/accelerator.h"
#include "tests/support/accelerator.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_folder.h"

namespace tessera {
namespace {

using torch::Tensor;

struct PortNetImpl : torch::nn::Module {
  explicit PortNetImpl(int64_t outputs = 3) : out(4, outputs) {
    register_module("in", in), register_module("out", out);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          torch::sin(torch::arange(parameter.numel(), torch::kFloat32)).reshape(parameter.sizes()));
    }
  }
  Tensor forward(const Tensor& x) { return out(torch::tanh(in(x))); }
  torch::nn::Linear in{5, 4}, out;
};
TORCH_MODULE(PortNet);

Tensor rows(int64_t step) {
  return torch::cos(torch::arange(10, torch::kFloat32) * static_cast<double>(step + 1))
      .reshape({2, 5});
}

/// The same rows on all ranks, so that what ranks average is what one has.
using Layout = AcceleratorLayout;

class PortsTest : public ::testing::TestWithParam<Layout> {
 protected:
  static void with_accelerator(const AcceleratorOptions& options,
                               const std::function<void(Accelerator&)>& body) {
    on_accelerator(GetParam(), options, body);
  }
};

/// A model and its optimizer without an Accelerator.
struct Plain {
  PortNet net;
  torch::optim::SGD sgd{net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.5)};

  void backward(const Tensor& x) { net(x).pow(2).mean().backward(); }
};

void expect_equal(Accelerator& accelerator, auto& model, const PortNet& plain) {
  const auto trained = accelerator.get_state_dict(model);
  for (const auto& item : plain->named_parameters()) {
    EXPECT_TRUE(torch::allclose(trained[item.key()], item.value(), 1e-5, 1e-6)) << item.key();
  }
}

TEST_P(PortsTest, GradientsAreDroppedBetweenAForwardAndItsBackward) {
  with_accelerator({}, [](Accelerator& accelerator) {
    PortNet net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    Plain plain;
    for (int64_t step = 0; step < 6; ++step) {
      const bool skipped = step % 3 == 1;
      const auto loss = model(rows(step)).pow(2).mean();
      optimizer.zero_grad();
      accelerator.backward(loss);
      if (!skipped) optimizer.step();
      plain.sgd.zero_grad();
      plain.backward(rows(step));
      if (!skipped) plain.sgd.step();
    }
    expect_equal(accelerator, model, plain.net);
  });
}

// The orders of PyTorch's DCGAN example and of one that begins with the generator: the judge keeps the generator's gradients until
// its own turn.
TEST_P(PortsTest, AGeneratorAndItsJudge) {
  for (const bool generator_first : {false, true}) {
    with_accelerator({}, [&](Accelerator& accelerator) {
      const auto run = [&](auto& generator, auto& judge, auto& of_generator, auto& of_judge,
                           const auto& backward) {
        const auto judgement = [&](const Tensor& made) {
          return judge(torch::cat({made, made}, 1).narrow(1, 0, 5));
        };
        for (int64_t step = 0; step < 8; ++step) {
          const auto made = generator(rows(step / 2));
          if ((step % 2 == 0) == generator_first) {
            of_generator.zero_grad();
            backward(judgement(made).pow(2).mean());
            of_generator.step();
          } else {
            of_judge.zero_grad();
            backward(judgement(made.detach()).mean());
            of_judge.step();
          }
        }
      };
      PortNet plain_generator, plain_judge;
      torch::optim::SGD plain_of_generator(plain_generator->parameters(), 0.2),
          plain_of_judge(plain_judge->parameters(), 0.1);
      run(plain_generator, plain_judge, plain_of_generator, plain_of_judge,
          [](const Tensor& loss) { loss.backward(); });
      PortNet net, judge_net;
      torch::optim::SGD sgd(net->parameters(), 0.2), of_judge_net(judge_net->parameters(), 0.1);
      auto [generator, of_generator] = accelerator.prepare(net, sgd);
      auto [judge, of_judge] = accelerator.prepare(judge_net, of_judge_net);
      run(generator, judge, of_generator, of_judge,
          [&](const Tensor& loss) { accelerator.backward(loss); });
      expect_equal(accelerator, generator, plain_generator);
      expect_equal(accelerator, judge, plain_judge);
    });
  }
}

TEST_P(PortsTest, ABackwardOfTheLossItselfIsRefused) {
  with_accelerator({}, [](Accelerator& accelerator) {
    PortNet net;
    torch::optim::SGD sgd(net->parameters(), 0.2);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    model(rows(0)).mean().backward();
    EXPECT_THROW(optimizer.step(), c10::ValueError);
  });
}

TEST_P(PortsTest, ParametersMayBeAddedToAnOptimizer) {
  with_accelerator({}, [](Accelerator& accelerator) {
    const auto unfreeze = [](torch::optim::Optimizer& optimizer, const PortNet& net) {
      optimizer.add_param_group(torch::optim::OptimizerParamGroup(net->in->parameters()));
    };
    Plain plain;
    torch::optim::SGD plain_sgd(plain.net->out->parameters(),
                                torch::optim::SGDOptions(0.2).momentum(0.5));
    PortNet net;
    torch::optim::SGD sgd(net->out->parameters(), torch::optim::SGDOptions(0.2).momentum(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int64_t step = 0; step < 4; ++step) {
      if (step == 2) unfreeze(sgd, net), unfreeze(plain_sgd, plain.net);
      plain.backward(rows(step));
      plain_sgd.step();
      plain.net->zero_grad();
      accelerator.backward(model(rows(step)).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    expect_equal(accelerator, model, plain.net);
  });
}

struct NoisyImpl : torch::nn::Module {
  NoisyImpl() { register_module("net", net), register_module("dropout", dropout); }
  Tensor forward(const Tensor& x) { return dropout(net(x)); }
  PortNet net{64};
  nn::Dropout dropout{"dropout", 0.5};
};
TORCH_MODULE(Noisy);

TEST_P(PortsTest, TwoForwardsBeforeABackwardDrawTwice) {
  with_accelerator({}, [](Accelerator& accelerator) {
    Noisy net;
    torch::optim::SGD sgd(net->parameters(), 0.2);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto first = model(rows(0)), second = model(rows(0));
    EXPECT_FALSE(torch::equal(first, second));
    accelerator.backward((first - second).pow(2).mean());
  });
}

TEST_P(PortsTest, ACheckpointOfOtherShapesIsRefused) {
  const SharedFolder shared;
  const auto folder = shared.path() / "state";
  with_accelerator({}, [&](Accelerator& accelerator) {
    {
      PortNet net;
      torch::optim::SGD sgd(net->parameters(), 0.2);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(model(rows(0)).mean());
      optimizer.step();
      optimizer.zero_grad();
      accelerator.save_state(folder);
      accelerator.free_memory();
    }
    for (const int64_t outputs : {2, 5}) {
      PortNet net(outputs);
      torch::optim::SGD sgd(net->parameters(), 0.2);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      EXPECT_THROW(accelerator.load_state(folder), UserError) << outputs;
      accelerator.free_memory();
    }
  });
}

TEST_P(PortsTest, BackToTheStart) {
  const SharedFolder shared;
  const auto folder = shared.path() / "state";
  with_accelerator({}, [&](Accelerator& accelerator) {
    PortNet net;
    net->register_buffer("nothing", torch::zeros({0}));
    torch::optim::Adam adam(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.save_state(folder);
    std::vector<double> losses;
    for (int attempt = 0; attempt < 2; ++attempt) {
      for (int64_t step = 0; step < 3; ++step) {
        const auto loss = model(rows(step)).pow(2).mean();
        losses.push_back(loss.template item<double>());
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
      }
      if (attempt == 0) accelerator.load_state(folder);
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(losses[i], losses[i + 3]) << i;
  });
}

TEST_P(PortsTest, AStateWithoutAnObjectIsRefused) {
  const SharedFolder shared;
  const auto folder = shared.path() / "state";
  struct Counter {
    int value = 0;
    nlohmann::json state_dict() const { return value; }
    void load_state_dict(const nlohmann::json& state) { value = state; }
  } first, second;
  with_accelerator({}, [&](Accelerator& accelerator) {
    PortNet net;
    torch::optim::SGD sgd(net->parameters(), 0.2);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.register_for_checkpointing(first);
    accelerator.save_state(folder);
    accelerator.register_for_checkpointing(second);
    EXPECT_THROW(accelerator.load_state(folder), UserError);
  });
}

// What is sharded has no gradients that a module could drop: there it is the optimizer's to do.
TEST_P(PortsTest, AModuleDropsItsGradients) {
  if (GetParam().is_sharded()) GTEST_SKIP();
  with_accelerator({}, [](Accelerator& accelerator) {
    PortNet net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    Plain plain;
    for (int64_t step = 0; step < 5; ++step) {
      model->zero_grad();
      accelerator.backward(model(rows(step)).pow(2).mean());
      plain.net->zero_grad();
      plain.backward(rows(step));
      if (step < 3) continue;
      optimizer.step();
      optimizer.zero_grad();
      plain.sgd.step();
    }
    expect_equal(accelerator, model, plain.net);
  });
}

// DDP lets each rank's loss be of what it likes: here of models that look alike, in another order.
TEST_P(PortsTest, RanksUseDifferentModels) {
  if (GetParam().is_sharded()) GTEST_SKIP();
  const int ranks = GetParam().ranks;
  const auto loss = [](int rank, int64_t step, auto& first, auto& second) {
    const auto x = rows(step + rank);
    switch ((rank + step) % 3) {
      case 0:
        return first(x).pow(2).mean();
      case 1:
        return second(x).pow(2).mean();
      default:
        return second(first(x)).exp().mean();
    }
  };
  with_accelerator({}, [&](Accelerator& accelerator) {
    PortNet first(5), frozen(5), second(5);
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    torch::optim::SGD sgd(first->parameters(), 0.2), other(second->parameters(), 0.2);
    auto [model, still, model_2, optimizer, optimizer_2] =
        accelerator.prepare(first, frozen, second, sgd, other);
    PortNet plain(5), plain_2(5);
    torch::optim::SGD plain_sgd(plain->parameters(), 0.2), plain_other(plain_2->parameters(), 0.2);
    for (int64_t step = 0; step < 6; ++step) {
      accelerator.backward(loss(accelerator.process_index(), step, model, model_2));
      for (auto* either : {&optimizer, &optimizer_2}) either->step(), either->zero_grad();
      plain_sgd.zero_grad(), plain_other.zero_grad();
      for (int rank = 0; rank < ranks; ++rank) {
        (loss(rank, step, plain, plain_2) / ranks).backward();
      }
      plain_sgd.step(), plain_other.step();
    }
    expect_equal(accelerator, model, plain);
    expect_equal(accelerator, model_2, plain_2);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, PortsTest,
                         ::testing::Values(Layout{1, "MULTI_CPU"}, Layout{2, "MULTI_CPU"},
                                           Layout{3, "MULTI_CPU"}, Layout{2, "FULL_SHARD"},
                                           Layout{3, "FULL_SHARD"}, Layout{2, "SHARD_GRAD_OP"}));

}  // namespace
}  // namespace tessera
