// A model of one's own and its optimizer, saved in one call and loaded by other ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/nn/layers.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tessera/train/lr_scheduler.h"
#include "tessera/train/save_state.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_folder.h"

namespace tessera {
namespace {

using parallel::Placement;
using ::testing::HasSubstr;

struct Net : nn::Hookable {
  Net() : first(4, 6), middle(6, 6), last(6, 3) {
    register_module("first", first), register_module("middle", middle);
    register_module("last", last);
    calls = register_buffer("calls", torch::zeros({}, torch::kInt64));
    mean = register_buffer("mean", torch::zeros({4}));
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.4);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    calls += 1;
    mean.mul_(0.9).add_(x.mean(0), 0.1);
    auto y = first(x).tanh();
    if (calls.item<int64_t>() % 2 == 1) y = middle(y).tanh();  // fewer updates of `middle`
    return last(y);
  }
  nn::Linear first, middle, last;
  torch::Tensor calls, mean;
};

torch::Tensor batch(int64_t step) {
  torch::manual_seed(50 + static_cast<uint64_t>(step));
  return torch::randn({6, 4});
}

/// Two groups with learning rates of their own, of which one was changed on the way.
torch::optim::AdamW make_optimizer(parallel::DataParallel& model) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const bool of_first : {true, false}) {
    std::vector<torch::Tensor> parameters;
    for (const auto& item : model.named_parameters()) {
      if (item.key().starts_with("first") == of_first) parameters.push_back(item.value());
    }
    groups.emplace_back(parameters,
                        std::make_unique<torch::optim::AdamWOptions>(of_first ? 0.05 : 0.02));
  }
  return torch::optim::AdamW(groups, torch::optim::AdamWOptions(0.05));
}

void train(Net& net, parallel::DataParallel& model, torch::optim::AdamW& optimizer, int64_t begin,
           int64_t end, int rank, int ranks) {
  for (int64_t step = begin; step < end; ++step) {
    const auto x = batch(step).slice(0, 6 * rank / ranks, 6 * (rank + 1) / ranks);
    net.forward(x).square().sum().backward();
    model.finish_backward();
    optimizer.step();
    model.finish_step();
    if (step == 2) optimizer.param_groups()[1].options().set_lr(0.01);
  }
}

/// Six steps of one rank; the same after saving at three under `saved` ranks and loading under
/// others.
TEST(SaveState, AnyRanksGoOn) {
  std::map<std::string, torch::Tensor> expected;
  {
    const mesh::DeviceMesh alone;
    Net net;
    auto model = fully_shard(net, alone, {.gradient_divide_factor = 1});
    auto optimizer = make_optimizer(model);
    train(net, model, optimizer, 0, 6, 0, 1);
    for (const auto& item : net.named_parameters()) expected[item.key()] = item.value().detach();
  }
  const SharedFolder folder;
  for (const int ranks : {3, 1, 2}) {
    // The first ones save, the others go on from that.
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      const auto placement = ranks == 2 ? Placement::shard_optimizer : Placement::full_shard;
      Net net;
      if (ranks != 3) {  // other values, which the checkpoint replaces
        const torch::NoGradGuard no_grad;
        for (auto& parameter : net.parameters()) parameter.zero_();
      }
      auto model =
          fully_shard(net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1},
                      {.kind = ranks == 1 ? parallel::UnitRuleKind::whole_model
                                          : parallel::UnitRuleKind::by_size,
                       .min_num_params = 10});
      auto optimizer = make_optimizer(model);
      if (ranks == 3) {
        train(net, model, optimizer, 0, 3, mesh.rank(), ranks);
        save_state(folder.path(), model, optimizer, mesh, 3);
      } else {
        EXPECT_EQ(load_state(folder.path(), model, optimizer, mesh), 3);
        EXPECT_EQ(net.calls.item<int64_t>(), 3);
        EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.01);
      }
      train(net, model, optimizer, 3, 6, mesh.rank(), ranks);
      model.unshard();
      for (const auto& item : net.named_parameters()) {
        SCOPED_TRACE(item.key());
        expect_close(item.value().detach(), expected[item.key()],
                     {.absolute = 2e-5, .relative = 2e-5});
      }
    });
  }
}

TEST(SaveState, WhatDoesNotFitIsNamed) {
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = 1}}, [&](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = fully_shard(net, mesh);
    auto optimizer = make_optimizer(model);
    EXPECT_THROW(load_state(folder.path(), model, optimizer, mesh), UserError);  // nothing there
    torch::optim::AdamW other(net.parameters(), torch::optim::AdamWOptions(0.1));
    EXPECT_THROW(save_state(folder.path(), model, other, mesh, 1), c10::ValueError);
    EXPECT_THROW(save_state(folder.path(), model, optimizer, mesh, -1), c10::ValueError);
    save_state(folder.path(), model, optimizer, mesh, 1);
    nn::Linear smaller(4, 3);
    auto of_smaller = fully_shard(*smaller, mesh);
    torch::optim::AdamW its_own(of_smaller.parameters(), torch::optim::AdamWOptions(0.1));
    EXPECT_THROW(load_state(folder.path(), of_smaller, its_own, mesh), UserError);
    torch::optim::AdamW one_group(model.parameters(), torch::optim::AdamWOptions(0.1));
    EXPECT_THROW(load_state(folder.path(), model, one_group, mesh), UserError);
  });
}

TEST(SaveState, OfAnUnshardedModelIsRefused) {
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = fully_shard(net, mesh);
    auto optimizer = make_optimizer(model);
    model.unshard();
    EXPECT_THROW(save_state(folder.path(), model, optimizer, mesh, 1), c10::ValueError);
    model.reshard();
    EXPECT_NO_THROW(save_state(folder.path(), model, optimizer, mesh, 1));
  });
}

/// The text of the error that `action` ends in, of any kind; "" if it does not.
std::string line_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// A schedule goes on where it was: the rates are those of a run that nobody interrupted.
TEST(SaveState, ASchedulerGoesOn) {
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = fully_shard(net, mesh);
    auto optimizer = make_optimizer(model);
    const auto cosine = [](torch::optim::Optimizer& of) {
      return lr_scheduler::LRScheduler(of, lr_scheduler::CosineAnnealingLR{.T_max = 20});
    };
    auto scheduler = cosine(optimizer);
    for (int i = 0; i < 7; ++i) scheduler.step();
    save_state(folder.path(), model, optimizer, mesh, 7, &scheduler);
    auto again = make_optimizer(model);
    auto resumed = cosine(again);
    const auto fill = [&](double value) {
      const torch::NoGradGuard no_grad;
      model.unshard();
      for (auto& parameter : net.parameters()) parameter.fill_(value);
      model.reshard();
    };
    fill(7);
    EXPECT_THAT(line_of([&] { load_state(folder.path(), model, again, mesh); }),
                HasSubstr("was saved with a scheduler; give load_state() the one of the run"));
    model.unshard();  // a refused checkpoint changes nothing
    for (const auto& parameter : net.parameters()) EXPECT_TRUE(parameter.eq(7).all().item<bool>());
    model.reshard();
    EXPECT_EQ(load_state(folder.path(), model, again, mesh, &resumed), 7);
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(resumed.get_last_lr(), scheduler.get_last_lr());
      scheduler.step(), resumed.step();
    }
    save_state(folder.path(), model, optimizer, mesh, 8);
    EXPECT_THAT(line_of([&] { load_state(folder.path(), model, again, mesh, &resumed); }),
                HasSubstr("was saved without a scheduler; give save_state() the one of the run"));
  });
}

TEST(SaveState, AnotherModelInTheFolderStays) {
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = fully_shard(net, mesh);
    auto optimizer = make_optimizer(model);
    nn::Linear critic(4, 3);
    torch::nn::init::normal_(critic->weight);
    auto of_critic = fully_shard(*critic, mesh, {.sync_module_states = true});
    torch::optim::AdamW its_own(of_critic.parameters(), torch::optim::AdamWOptions(0.1));
    save_state(folder.path(), model, optimizer, mesh, 1);
    EXPECT_THAT(line_of([&] { save_state(folder.path(), of_critic, its_own, mesh, 1); }),
                HasSubstr("is of another model or optimizer"));
    EXPECT_NO_THROW(save_state(folder.path(), model, optimizer, mesh, 1));  // its own again
    EXPECT_EQ(load_state(folder.path(), model, optimizer, mesh), 1);
    EXPECT_THAT(line_of([&] { save_state(folder.path(), model, optimizer, mesh, mesh.rank()); }),
                HasSubstr("expected one step and folder on all ranks"));
  });
}

TEST(SaveState, AStateThatNobodyKeepsIsNotDropped) {
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = 1}}, [&](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = fully_shard(net, mesh);
    torch::optim::SGD momentum(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    save_state(folder.path(), model, momentum, mesh, 1);
    torch::optim::SGD plain(model.parameters(), torch::optim::SGDOptions(0.1));
    EXPECT_THAT(line_of([&] { load_state(folder.path(), model, plain, mesh); }),
                HasSubstr("has momentum_buffer of an optimizer"));
    EXPECT_EQ(load_state(folder.path(), model, momentum, mesh), 1);
    model.unshard();
    EXPECT_EQ(load_state(folder.path(), model, momentum, mesh), 1);  // one rank: nothing is sharded
  });
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = fully_shard(net, mesh);
    torch::optim::SGD momentum(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    model.unshard();
    EXPECT_THAT(line_of([&] { load_state(folder.path(), model, momentum, mesh); }),
                HasSubstr("load_state: expected a model whose parameters are sharded"));
  });
}

TEST(SaveState, ABufferThatIsAViewIsNamed) {
  struct Masked : nn::Hookable {
    Masked() : up(4, 3) {
      register_module("up", up);
      torch::nn::init::normal_(up->weight);
      register_buffer("mask", torch::ones({1}).expand({5}));
    }
    torch::Tensor forward(const torch::Tensor& x) { return up(x); }
    nn::Linear up;
  };
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = 1}}, [&](const mesh::DeviceMesh& mesh) {
    Masked net;
    EXPECT_THAT(
        line_of([&] { fully_shard(net, mesh, {.buffers = parallel::BufferSync::broadcast}); }),
        HasSubstr("mask: expected a buffer of its own memory"));
    auto model = fully_shard(net, mesh);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
    EXPECT_THAT(line_of([&] { save_state(folder.path(), model, optimizer, mesh, 1); }),
                HasSubstr("mask: expected a contiguous buffer"));
  });
}

}  // namespace
}  // namespace tessera
