// What a user does to a model after it was sharded: equal to plain LibTorch, or one clear line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/parallel/data/testing.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

using ::testing::HasSubstr;

torch::optim::AdamWOptions adamw() { return torch::optim::AdamWOptions(0.05).weight_decay(0.2); }

using BeforeStep = std::function<void(Net& net, int step)>;
constexpr int kSteps = 5;

std::vector<torch::Tensor> plain_values(const BeforeStep& before) {
  Net net;
  torch::optim::AdamW optimizer(net.parameters(), adamw());
  for (int step = 0; step < kSteps; ++step) {
    before(net, step);
    optimizer.zero_grad();
    loss_of(net, batch(step)).backward();
    optimizer.step();
  }
  return values_of(net);
}

/// The same steps of a sharded net, on this rank's part of each batch.
void train_sharded(Net& net, DataParallel& model, const mesh::DeviceMesh& mesh,
                   const BeforeStep& before) {
  const auto ranks = static_cast<int>(mesh.world().size());
  torch::optim::AdamW optimizer(model.parameters(), adamw());
  for (int step = 0; step < kSteps; ++step) {
    before(net, step);
    loss_of(net, part_of_batch(step, mesh.rank(), ranks)).backward();
    model.finish_backward();
    optimizer.step();
    model.finish_step();
  }
}

void expect_values(Net& net, DataParallel& model, const std::vector<torch::Tensor>& expected) {
  model.unshard();
  const auto found = values_of(net);
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(net.named_parameters().keys()[i]);
    expect_close(found[i], expected[i], {.absolute = 2e-5, .relative = 2e-5});
  }
}

/// A loop with `before` each step gives the plain loop's parameters on every rank, placement, rule.
void expect_as_plain(const BeforeStep& before) {
  const auto expected = plain_values(before);
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kPlacements) {
        for (const auto& rule : kRules) {
          SCOPED_TRACE(std::to_string(static_cast<int>(placement)) + " by " +
                       std::to_string(static_cast<int>(rule.kind)));
          Net net;
          auto model = fully_shard(
              net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, rule);
          train_sharded(net, model, mesh, before);
          expect_values(net, model, expected);
        }
      }
    });
  }
}

void set_trained(torch::nn::Module& module, bool trained) {
  for (auto& parameter : module.parameters()) parameter.requires_grad_(trained);
}

TEST(AfterSharding, FreezingAndUnfreezing) {
  expect_as_plain([](Net& net, int step) {
    if (step == 1) set_trained(*net.block0, false), set_trained(*net.first, false);
    if (step == 2) net.last->weight.requires_grad_(false);
    if (step == 3) set_trained(*net.block0, true), net.last->weight.requires_grad_(true);
  });
}

TEST(AfterSharding, UnfreezingWhatWasFrozenBefore) {
  const auto gradually = [](Net& net, int step) {
    // Before the sharding in the plain loop only; below they are frozen when it is sharded.
    if (step == 0) set_trained(*net.block0, false), set_trained(*net.first, false);
    if (step == 2) net.block0->in->weight.requires_grad_(true);
    if (step == 3) set_trained(*net.block0, true);
  };
  const auto expected = plain_values(gradually);
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kPlacements) {
        for (const auto& rule : kRules) {
          Net net;
          set_trained(*net.block0, false), set_trained(*net.first, false);
          auto model = fully_shard(
              net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, rule);
          train_sharded(net, model, mesh, gradually);
          expect_values(net, model, expected);
        }
      }
    });
  }
}

// The optimizer leaves alone what took no part, as torch's does where a gradient is undefined.
TEST(AfterSharding, WhatTakesNoPartIsNotUpdated) {
  expect_as_plain([](Net& net, int step) { net.with_block1 = step % 2 == 0; });
}

// A gradient that is there is used, as in a plain model.
TEST(AfterSharding, FreezingBetweenMicroBatches) {
  const auto run = [](Net& net, const torch::Tensor& x, const std::function<void()>& finish) {
    loss_of(net, x).backward();
    finish();
    net.block0->in->weight.requires_grad_(false);
    loss_of(net, x * 2).backward();
    finish();
  };
  Net plain;
  torch::optim::AdamW of_plain(plain.parameters(), adamw());
  run(plain, batch(0), [] {});
  of_plain.step();
  const auto expected = values_of(plain);
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto placement : kPlacements) {
      Net net;
      auto model = fully_shard(
          net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, kRules[0]);
      torch::optim::AdamW optimizer(model.parameters(), adamw());
      run(net, part_of_batch(0, mesh.rank(), 2), [&] { model.finish_backward(); });
      optimizer.step();
      model.finish_step();
      expect_values(net, model, expected);
    }
  });
}

TEST(AfterSharding, FreezingBesideSlicesIsRefused) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = fully_shard(net, mesh, {}, kRules[0]);
    model.slices();
    set_trained(*net.first, false);
    loss_of(net, batch(0)).backward();
    expect_line([&] { model.finish_backward(); }, "first.");
  });
}

TEST(AfterSharding, MovingOrCastingIsRefused) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model =
        fully_shard(net, mesh, {.unit = {.placement = Placement::shard_optimizer}}, kRules[0]);
    net.to(torch::kDouble);
    expect_line([&] { loss_of(net, batch(0).to(torch::kDouble)); },
                "first.weight: does not lie where sharding put it; call to() before");
  });
}

// LibTorch forgets where the gradients of a parameter arrive once it is loaded.
TEST(AfterSharding, WhatWasLoadedIsTrained) {
  const auto name = [](size_t i) { return "p" + std::to_string(i); };
  std::ostringstream stream;
  {
    Net net;
    torch::serialize::OutputArchive archive;
    for (size_t i = 0; const auto& parameter : net.parameters())
      archive.write(name(i++), parameter);
    archive.save_to(stream);
  }
  const auto load = [&](Net& net) {
    std::istringstream bytes(stream.str());
    torch::serialize::InputArchive archive;
    archive.load_from(bytes);
    for (size_t i = 0; auto& parameter : net.parameters()) archive.read(name(i++), parameter);
  };
  const auto expected = plain_values([&](Net& net, int step) {
    if (step == 0 || step == 3) load(net);
  });
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kPlacements) {
        Net net;
        auto model = fully_shard(
            net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, kRules[0]);
        train_sharded(net, model, mesh, [&](Net&, int step) {
          if (step != 0 && step != 3) return;
          model.unshard();
          load(net);
          model.reshard();
        });
        expect_values(net, model, expected);
      }
    });
  }
}

// Between the parameters of a buffer is room, which NaN must not stay in.
TEST(AfterSharding, AStepSkippedForNaNLeavesNothing) {
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (int i = 0; i < 8; ++i) {
        const auto placement = kPlacements[static_cast<size_t>(i / 2)];
        const bool zeroes = i % 2 == 0;  // and steps, or skips the step
        Net net;
        auto model = fully_shard(net, mesh, {.unit = {.placement = placement}}, kRules[0]);
        torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05));
        for (int step = 0; step < 4; ++step) {
          const double factor = step == 1 ? NAN : 1;
          (loss_of(net, part_of_batch(step, mesh.rank(), ranks)) * factor).backward();
          model.finish_backward();
          const double norm = model.clip_grad_norm(0.5);
          EXPECT_EQ(std::isfinite(norm), step != 1);
          if (step == 1 && zeroes) {
            model.scale_gradients(0);
            EXPECT_EQ(model.gradient_norm().norm, 0);
          }
          if (std::isfinite(norm) || zeroes) optimizer.step();
          model.finish_step();
        }
        EXPECT_TRUE(std::isfinite(loss_of(net, batch(0)).item<double>()));
      }
    });
  }
}

struct Overlapping : nn::Hookable {
  Overlapping() {
    whole = register_parameter("whole", torch::ones({4, 3}));
    part = register_parameter("part", whole.detach().narrow(0, 1, 2));
    const auto both = torch::ones({8});  // apart in one storage
    first = register_parameter("first", both.narrow(0, 0, 4));
    last = register_parameter("last", both.narrow(0, 4, 4));
  }
  torch::Tensor whole, part, first, last;
};

struct WithMaxNorm : nn::Hookable {
  WithMaxNorm() { register_module("table", table); }
  torch::nn::Embedding table{torch::nn::EmbeddingOptions(5, 3).max_norm(1)};
};

TEST(AfterSharding, WhatCannotBeEqualIsRefused) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    Overlapping overlapping;
    expect_line([&] { fully_shard(overlapping, mesh); },
                "part: expected memory of its own, got that of whole");
    WithMaxNorm bounded;
    expect_line([&] { fully_shard(bounded, mesh); }, "table.weight: expected no max_norm");
    torch::manual_seed(1);
    WithMaxNorm copied;
    replicate(copied, mesh);  // as in DDP
  });
}

TEST(AfterSharding, ARefusedRootTakesNoBlock) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    Net net;
    auto block0 = fully_shard(*net.block0, mesh), block1 = fully_shard(*net.block1, mesh);
    torch::optim::SGD optimizer(block1.parameters(), torch::optim::SGDOptions(0.05));
    expect_line([&] { fully_shard(net, mesh); },
                "block1: expected optimizers of the whole sharded model");
    loss_of(net, batch(0)).backward();
    for (auto* model : {&block0, &block1}) {
      EXPECT_EQ(model->units().size(), 1U);
      model->finish_backward();
    }
    optimizer.step();
    block1.finish_step();
    loss_of(net, batch(1));
  });
}

TEST(AfterSharding, BlocksFirstThenTheRoot) {
  const auto expected = plain_values([](Net&, int) {});
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kPlacements) {
        const DataParallelOptions options{.unit = {.placement = placement},
                                          .gradient_divide_factor = 1};
        Net net;
        auto inner = fully_shard(*net.block0, mesh, options);
        fully_shard(*net.block1, mesh, options);
        auto model = fully_shard(net, mesh, options, {.kind = UnitRuleKind::whole_model});
        std::vector<std::string> names;
        for (const auto& unit : model.units()) names.push_back(unit.name());
        EXPECT_EQ(names, (std::vector<std::string>{"model", "block0.in+out", "block1.in+out"}));
        expect_line([&] { inner.finish_step(); }, "expected the handle of the whole model");
        train_sharded(net, model, mesh, [](Net&, int) {});
        expect_values(net, model, expected);
        for (const auto& part : model.parts()) {
          EXPECT_TRUE(net.named_parameters().contains(part.extent.name)) << part.extent.name;
        }
      }
    });
  }
}

TEST(AfterSharding, ShardingAgainIsRefused) {
  on_mesh({.shape = {.dp_shard = 1}}, [](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = fully_shard(net, mesh);
    expect_line([&] { fully_shard(net, mesh); }, "first: expected a module that is not sharded");
    expect_line([&] { fully_shard(*net.block0, mesh); }, "expected a module that is not sharded");
  });
}

TEST(AfterSharding, ValuesGivenByHandBeforeTheFirstStepCount) {
  const auto by_hand = [](Net& net, int step) {
    const torch::NoGradGuard no_grad;
    if (step == 0) net.last->weight.fill_(0.3), net.block0->in->bias.add_(0.1);
  };
  const auto expected = plain_values(by_hand);
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto placement :
         {Placement::replicate, Placement::shard_optimizer, Placement::shard_gradients}) {
      Net net;
      auto model = fully_shard(
          net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, kRules[0]);
      torch::optim::AdamW optimizer(model.parameters(), adamw());
      for (int step = 0; step < kSteps; ++step) {
        by_hand(net, step);
        loss_of(net, part_of_batch(step, mesh.rank(), 2)).backward();
        model.finish_backward();
        optimizer.step();
        model.finish_step();
      }
      model.unshard();
      const auto found = values_of(net);
      for (size_t i = 0; i < expected.size(); ++i) {
        expect_close(found[i], expected[i], {.absolute = 2e-5, .relative = 2e-5});
      }
    }
  });
}

// Ranks that call other modules than others: the unit is named when the deadline passes.
TEST(AfterSharding, RanksThatBranchDifferentlyAreTold) {
  on_mesh({.shape = {.dp_shard = 2}, .timeout = std::chrono::seconds(2)},
          [](const mesh::DeviceMesh& mesh) {
            Net net;
            auto model = fully_shard(net, mesh, {.forward_prefetch = false}, kRules[0]);
            net.with_block1 = mesh.rank() == 0;
            try {
              loss_of(net, batch(0)).backward();
              model.finish_backward();
              FAIL();
            } catch (const c10::DistError& error) {
              EXPECT_THAT(error.what_without_backtrace(), HasSubstr("(unit "));
            }
          });
}

TEST(AfterSharding, WhatIsWrittenElsewhereIsNamed) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    Net net;
    UnitOptions unit{.placement = Placement::shard_optimizer};
    unit.mixed_precision.param_dtype = torch::kBFloat16;
    auto model = fully_shard(net, mesh, {.unit = unit}, kRules[0]);
    {
      const torch::NoGradGuard no_grad;
      net.first->weight.fill_(1);
    }
    expect_line([&] { loss_of(net, batch(0).to(torch::kBFloat16)); },
                "first.weight: was written where that is lost; write parameters between unshard()");
  });
}

TEST(AfterSharding, AnOptimizerMadeBeforeIsNamed) {
  const auto line = [](const mesh::DeviceMesh& mesh, Placement placement, const std::string& text) {
    Net net;
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
    auto model = fully_shard(net, mesh, {.unit = {.placement = placement}}, kRules[0]);
    expect_line(
        [&] {
          for (int step = 0; step < 2; ++step) {
            loss_of(net, batch(step)).backward();
            model.finish_backward();
            optimizer.step();
            model.finish_step();
          }
        },
        text);
  };
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    line(mesh, Placement::shard_optimizer,
         "make the optimizer of the sharded model's parameters()");
    line(mesh, Placement::full_shard, "make the optimizer of the sharded model's parameters()");
  });
}

TEST(AfterSharding, AForgottenFinishStepIsNamed) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto placement : kPlacements) {
      Net net;
      auto model = fully_shard(net, mesh, {.unit = {.placement = placement}}, kRules[0]);
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
      loss_of(net, batch(0)).backward();
      model.finish_backward();
      optimizer.step();
      expect_line([&] { loss_of(net, batch(1)); }, "expected finish_step() after the optimizer's");
    }
  });
}

TEST(AfterSharding, LbfgsIsNamed) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = fully_shard(net, mesh, {}, kRules[0]);
    torch::optim::LBFGS optimizer(model.parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3));
    const auto closure = [&] {
      optimizer.zero_grad();
      auto loss = loss_of(net, batch(0));
      loss.backward();
      model.finish_backward();
      return loss;
    };
    expect_line([&] { optimizer.step(closure); }, "expected finish_step() after the optimizer's");
  });
}

TEST(AfterSharding, ClipsTheNormOfTheWholeGradient) {
  Net plain;
  loss_of(plain, batch(0)).backward();
  const double norm = torch::nn::utils::clip_grad_norm_(plain.parameters(), 0.5);
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kPlacements) {
        Net net;
        auto model = fully_shard(
            net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, kRules[0]);
        loss_of(net, part_of_batch(0, mesh.rank(), ranks)).backward();
        model.finish_backward();
        EXPECT_NEAR(model.clip_grad_norm(0.5), norm, 1e-4 * norm);
        EXPECT_NEAR(model.clip_grad_norm(1e9), 0.5, 1e-4);
        EXPECT_THROW(model.clip_grad_norm(0), c10::ValueError);
      }
    });
  }
}

TEST(AfterSharding, GroupsByNameHaveOptionsOfTheirOwn) {
  const auto groups_of = [](const torch::OrderedDict<std::string, torch::Tensor>& named) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    const std::vector<std::pair<std::string, double>> rates{
        {"first", 0.1}, {"block0", 0.01}, {"block1", 0.03}, {"last", 0.0}};
    for (const auto& [prefix, rate] : rates) {
      std::vector<torch::Tensor> parameters;
      for (const auto& item : named) {
        if (item.key().starts_with(prefix)) parameters.push_back(item.value());
      }
      groups.emplace_back(parameters, std::make_unique<torch::optim::SGDOptions>(rate));
    }
    return groups;
  };
  Net plain;
  torch::optim::SGD of_plain(groups_of(plain.named_parameters()), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 2; ++step) {
    of_plain.zero_grad();
    loss_of(plain, batch(step)).backward();
    of_plain.step();
  }
  const auto expected = values_of(plain);
  on_mesh({.shape = {.dp_shard = 3}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto placement : kPlacements) {
      Net net;
      auto model = fully_shard(
          net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, kRules[1]);
      torch::optim::SGD optimizer(groups_of(model.named_parameters()),
                                  torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 2; ++step) {
        loss_of(net, part_of_batch(step, mesh.rank(), 3)).backward();
        model.finish_backward();
        optimizer.step();
        model.finish_step();
      }
      model.unshard();
      const auto found = values_of(net);
      for (size_t i = 0; i < expected.size(); ++i) {
        expect_close(found[i], expected[i], {.absolute = 1e-5, .relative = 1e-5});
      }
    }
  });
}

TEST(AfterSharding, BuffersStayAreSentOrAveraged) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    std::vector<torch::Tensor> own;
    for (const auto how : {BufferSync::per_rank, BufferSync::broadcast, BufferSync::average}) {
      Net net;
      auto model = fully_shard(net, mesh, {.buffers = how}, kRules[0]);
      model.slices();  // as for an optimizer
      if (mesh.rank() == 1) net.block1->note(torch::ones({2, 6}));
      loss_of(net, part_of_batch(0, mesh.rank(), 2)).backward();
      model.finish_backward();
      model.finish_step();
      auto found = net.block1->running.detach().clone();
      const auto both = [&] {
        auto sum = found.clone();
        mesh.axis("dp_shard").all_reduce(sum).wait();
        return sum;
      }();
      const auto calls = net.block1->calls.item<int64_t>();
      if (how == BufferSync::per_rank) {
        own = {found, both};
        EXPECT_EQ(calls, mesh.rank() + 1);
      } else {
        EXPECT_EQ(calls, 1);  // rank 0's
        expect_close(both, found * 2);
        if (how == BufferSync::average) expect_close(found, own[1] / 2);
        if (how == BufferSync::broadcast && mesh.rank() == 0) expect_close(found, own[0]);
      }
    }
  });
}

TEST(AfterSharding, AModelOnTheMetaDeviceNeedsValues) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    nn::Linear net(4, 3, false, torch::TensorOptions(torch::kMeta));
    auto model = fully_shard(*net, mesh);
    expect_line(
        [&] { net(batch(0)); },
        "weight: was on the meta device and has no values; call fill() of the sharded model");
    model.fill([](const std::string&, int64_t, torch::Tensor part) { part.fill_(0.5); });
    EXPECT_NO_THROW(net(batch(0)));
    nn::Linear other(4, 3, false, torch::TensorOptions(torch::kMeta));
    expect_line([&] { fully_shard(*other, mesh, {.sync_module_states = true}); },
                "weight: is on the meta device on rank 0");
  });
}

struct ComplexImpl : nn::Hookable {
  ComplexImpl() { weight = register_parameter("weight", torch::ones({3}, torch::kComplexFloat)); }
  torch::Tensor forward(const torch::Tensor& x) { return torch::abs(x * weight); }
  torch::Tensor weight;
};

TEST(AfterSharding, AComplexParameterIsNamed) {
  on_mesh({.shape = {.dp_shard = 1}}, [](const mesh::DeviceMesh& mesh) {
    ComplexImpl net;
    expect_line([&] { fully_shard(net, mesh); },
                "weight: expected a real floating-point dtype, got ComplexFloat");
  });
}

// A loss in a member that add_output was not told of reads parameters that are away: an error, not
// what lies in memory by then.
struct SideImpl : nn::Hookable {
  SideImpl() { weight = register_parameter("weight", torch::randn({6, 6})); }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = x.matmul(weight).tanh();
    side = x.matmul(weight.t());
    return y;
  }
  torch::Tensor weight, side;
};
struct WithSideImpl : nn::Hookable {
  WithSideImpl() : first(4, 6), last(6, 3) {
    register_module("first", first), register_module("part", part), register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(part(first(x))); }
  nn::Linear first;
  nn::Hooked<SideImpl> part;
  nn::Linear last;
};

TEST(AfterSharding, AHiddenLossNeverReadsWhatIsNotThere) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto prefetch : {BackwardPrefetch::none, BackwardPrefetch::pre}) {
      WithSideImpl net;
      auto model = fully_shard(
          net, mesh, {.backward_prefetch = prefetch, .sync_module_states = true}, kRules[0]);
      const auto y = net.forward(batch(0)).square().sum();
      EXPECT_THROW((y + 0.3 * net.part->side.square().sum()).backward(), c10::Error);
    }
  });
}

/// Uses a parameter of its own around its children, and keeps a view of it.
struct ScaledImpl : nn::Hookable {
  ScaledImpl() : up(6, 9), down(9, 6) {
    register_module("up", up), register_module("down", down);
    scale = register_parameter("scale", torch::ones({9}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    kept = nn::add_output(scale.slice(0, 0, 4));
    return x + down((up(x) * scale).tanh());
  }
  nn::Linear up, down;
  torch::Tensor scale, kept;
};
struct OfScaledImpl : nn::Hookable {
  OfScaledImpl() : first(4, 6) {
    register_module("first", first), register_module("block", block);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.4);
  }
  torch::Tensor forward(const torch::Tensor& x) { return block(first(x)); }
  nn::Linear first;
  nn::Hooked<ScaledImpl> block;
};

TEST(AfterSharding, ASecondBackwardThroughAUnitOfNestedModules) {
  const auto run = [](OfScaledImpl& net, const torch::Tensor& x) {
    const auto y = net.forward(x);
    y.sum().backward({}, /*retain_graph=*/true);
    y.square().sum().backward();
  };
  OfScaledImpl plain;
  run(plain, batch(0));
  double square = 0;
  for (const auto& parameter : plain.parameters()) {
    square += parameter.grad().square().sum().item<double>();
  }
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto placement : kPlacements) {
      OfScaledImpl net;
      auto model = fully_shard(
          net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, kRules[1]);
      run(net, part_of_batch(0, mesh.rank(), 2));
      model.finish_backward();
      EXPECT_NEAR(model.gradient_norm().norm / std::sqrt(square), 1, 1e-5);
      EXPECT_TRUE(net.block->kept.sum().isfinite().item<bool>());  // it has memory of its own
    }
  });
}

/// Keeps a view of its weight: of each forward, or of the time when it was made.
struct KeepsViewImpl : nn::Hookable {
  explicit KeepsViewImpl(bool early) : early(early) {
    weight = register_parameter("weight", torch::ones({6, 6}));
    if (early) kept = weight.t();
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (!early) kept = weight.t();
    return x.matmul(kept);
  }
  torch::Tensor weight, kept;
  bool early;
};
struct OfViewImpl : nn::Hookable {
  explicit OfViewImpl(bool early) : part(early), last(6, 3) {
    register_module("part", part), register_module("last", last);
    const torch::NoGradGuard no_grad;
    last->weight.fill_(0.3);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(part(x)); }
  nn::Hooked<KeepsViewImpl> part;
  nn::Linear last;
};

TEST(AfterSharding, AViewThatIsKeptIsReadableOrAnError) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto placement : kPlacements) {
      OfViewImpl early(true);
      expect_line([&] { fully_shard(early, mesh, {.unit = {.placement = placement}}, kRules[0]); },
                  "part.weight: a view of it with a graph is kept");
    }
    OfViewImpl net(false);
    auto model = fully_shard(net, mesh, {}, kRules[0]);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01));
    for (int step = 0; step < 3; ++step) {
      net.forward(torch::ones({2, 6})).sum().backward();
      model.finish_backward();
      optimizer.step();
      model.finish_step();
      EXPECT_THROW(net.part->kept.sum().item<float>(), c10::Error);  // its memory is away
    }
  });
}

TEST(AfterSharding, WhatWasShardedWithAnotherModuleIsNamed) {
  struct TiedImpl : nn::Hookable {
    TiedImpl() : up(6, 6), down(6, 6) {
      register_module("up", up), register_module("down", down);
      torch::manual_seed(1);
      const torch::NoGradGuard no_grad;
      up->weight.normal_();
      down->register_parameter("weight", up->weight);
    }
    torch::Tensor forward(const torch::Tensor& x) { return down(up(x).tanh()); }
    struct UserImpl : nn::Hookable {
      UserImpl(int64_t, int64_t) { register_parameter("bias", torch::ones({6})); }
      torch::Tensor forward(const torch::Tensor& x) {
        return x.matmul(named_parameters(false)["weight"]);
      }
    };
    nn::Linear up;
    nn::Hooked<UserImpl> down;
  };
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto placement : kPlacements) {
      const DataParallelOptions options{.unit = {.placement = placement}};
      TiedImpl net;
      const auto first = fully_shard(*net.up, mesh, options);
      expect_line([&] { fully_shard(net, mesh, options); },
                  "down: expected parameters of its own, got one of up, which was sharded before");
      expect_line([&] { fully_shard(*net.down, mesh, options); },
                  "weight: is sharded with another module");
    }
  });
}

TEST(AfterSharding, FloatFeaturesBesideBf16ParametersAreNamed) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = fully_shard(
        net, mesh, {.unit = {.mixed_precision = {.param_dtype = torch::kBFloat16}}}, kRules[1]);
    expect_line([&] { net.forward(batch(0)); }, "cast_constant_inputs");
  });
}

// A collective of the user's on world() between a backward and finish_backward, beside ranks that
// reach their units in other orders.
TEST(AfterSharding, TheWorldHasAChannelOfItsOwn) {
  on_mesh({.shape = {.dp_replicate = 3}}, [](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = replicate(net, mesh, {}, kRules[0]);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      net.with_block1 = mesh.rank() == step % 3;
      auto loss = loss_of(net, batch(step));
      loss.backward();
      auto total = loss.detach().clone();
      mesh.world().all_reduce(total).wait();
      EXPECT_GT(total.item<float>(), loss.item<float>() * 0.99);
      model.finish_backward();
      optimizer.step();
      model.finish_step();
    }
  });
}

}  // namespace
}  // namespace tessera::parallel
