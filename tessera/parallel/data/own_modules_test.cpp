// What a user's own modules and loops may do: each case equals plain LibTorch on the whole batch,
// or is one clear line at the first place where it can be known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "tessera/nn/layers.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

using ::testing::HasSubstr;

const std::vector<Placement> kAllPlacements{Placement::replicate, Placement::shard_optimizer,
                                            Placement::shard_gradients, Placement::full_shard};

struct OwnNet : nn::Hookable {
  OwnNet() : first(4, 6), middle(6, 6), last(6, 3) {
    register_module("first", first), register_module("middle", middle);
    register_module("last", last);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.4);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(middle(first(x).tanh()).tanh()); }
  nn::Linear first, middle, last;
};

const std::vector<UnitRule> kUnitRules{{.kind = UnitRuleKind::by_size, .min_num_params = 10},
                                       {.kind = UnitRuleKind::by_name, .patterns = {"middle"}},
                                       {.kind = UnitRuleKind::whole_model}};

/// Norm of the gradient that `backward` leaves in a plain net.
template <typename Model>
double plain_norm(const std::function<void(Model& net)>& backward) {
  Model net;
  backward(net);
  double square = 0;
  for (const auto& parameter : net.parameters()) {
    if (parameter.grad().defined())
      square += parameter.grad().square().sum().template item<double>();
  }
  return std::sqrt(square);
}

torch::Tensor batch() {
  torch::manual_seed(5);
  return torch::randn({6, 4});
}
torch::Tensor part_of_batch(int rank, int ranks) {
  return batch().slice(0, 6 * rank / ranks, 6 * (rank + 1) / ranks);
}

/// `run` on each rank's part of the batch, by every placement and unit rule, leaves the gradient that it leaves on the whole
/// batch in one plain net.
template <typename Model>
void expect_gradient(const std::function<void(Model& net, const torch::Tensor& x)>& run) {
  const double expected = plain_norm<Model>([&](Model& net) { run(net, batch()); });
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kAllPlacements) {
        for (const auto& rule : kUnitRules) {
          SCOPED_TRACE(std::to_string(static_cast<int>(placement)) + " by " +
                       std::to_string(static_cast<int>(rule.kind)));
          Model net;
          auto model = fully_shard(
              net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, rule);
          run(net, part_of_batch(mesh.axis("dp_shard").rank(), ranks));
          model.finish_backward();
          EXPECT_NEAR(model.gradient_norm().norm / expected, 1, 1e-5);
          model.finish_step();
        }
      }
    });
  }
}

torch::Tensor loss(const torch::Tensor& y) { return y.square().sum(); }

TEST(OwnModules, OneGraphTwoBackwards) {
  const auto twice = [](OwnNet& net, const torch::Tensor& x) {
    const auto y = net.forward(x);
    loss(y).backward({}, /*retain_graph=*/true);
    y.sin().sum().backward();
  };
  expect_gradient<OwnNet>(twice);
}

TEST(OwnModules, TwoForwardsTwoBackwardsOneFinish) {
  const auto twice = [](OwnNet& net, const torch::Tensor& x) {
    loss(net.forward(x)).backward();
    net.forward(x * 2).sin().sum().backward();
  };
  expect_gradient<OwnNet>(twice);
}

TEST(OwnModules, AGradientOfTheInputBeforeTheBackward) {
  const auto both = [](OwnNet& net, const torch::Tensor& x) {
    const auto input = x.clone().requires_grad_();
    const auto value = loss(net.forward(input));
    const auto of_input =
        torch::autograd::grad({value}, {input}, {}, /*retain_graph=*/true)[0].detach();
    (value * of_input.abs().sum().clamp_max(1)).backward();
  };
  expect_gradient<OwnNet>(both);
}

TEST(OwnModules, GradientsOfGradientsAreRefused) {
  on_mesh({.shape = {.dp_shard = 1}}, [](const mesh::DeviceMesh& mesh) {
    OwnNet net;
    auto model = fully_shard(net, mesh, {}, kUnitRules[0]);
    auto x = batch().requires_grad_();
    const auto value = loss(net.forward(x));
    try {
      torch::autograd::grad({value}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      FAIL();
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr("create_graph"));
    }
  });
}

/// A position table: what it returns is a view of its parameter.
struct TableImpl : nn::Hookable {
  TableImpl() { rows = register_parameter("rows", torch::empty({8, 6})); }
  torch::Tensor forward(int64_t count) { return rows.slice(0, 0, count); }
  torch::Tensor rows;
};
using Table = nn::Hooked<TableImpl>;

struct WithTable : nn::Hookable {
  WithTable() : first(4, 6), middle(6, 3) {
    register_module("first", first), register_module("table", table);
    register_module("middle", middle);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.4);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto positions = table(x.size(0));
    return middle((first(x) + positions).tanh());
  }
  nn::Linear first;
  Table table;
  nn::Linear middle;
};

TEST(OwnModules, AUnitReturnsAViewOfItsParameter) {
  const auto run = [](WithTable& net, const torch::Tensor& x) { loss(net.forward(x)).backward(); };
  // Each rank sees the first rows: as the plain net on each part in turn.
  for (const int ranks : {1, 2, 3}) {
    const double expected = plain_norm<WithTable>([&](WithTable& net) {
      for (int rank = 0; rank < ranks; ++rank) run(net, part_of_batch(rank, ranks));
    });
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kAllPlacements) {
        WithTable net;
        auto model =
            fully_shard(net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1},
                        {.kind = UnitRuleKind::by_size, .min_num_params = 10});
        run(net, part_of_batch(mesh.axis("dp_shard").rank(), ranks));
        model.finish_backward();
        EXPECT_NEAR(model.gradient_norm().norm / expected, 1, 1e-5);
        model.finish_step();
      }
    });
  }
}

/// Calls its leaf twice, then uses a parameter of its own.
struct OwnerImpl : nn::Hookable {
  OwnerImpl() : leaf(4, 4) {
    register_module("leaf", leaf);
    scale = register_parameter("scale", torch::empty({4, 4}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return leaf(leaf(x).tanh()).matmul(scale.t()); }
  nn::Linear leaf;
  torch::Tensor scale;
};
using Owner = nn::Hooked<OwnerImpl>;

struct WithOwner : nn::Hookable {
  WithOwner() : middle(4, 3) {
    register_module("owner", owner), register_module("middle", middle);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.4);
  }
  torch::Tensor forward(const torch::Tensor& x) { return middle(owner(x).tanh()); }
  Owner owner;
  nn::Linear middle;
};

TEST(OwnModules, ALeafIsCalledTwiceBeforeItsOwnersParameter) {
  expect_gradient<WithOwner>(
      [](WithOwner& net, const torch::Tensor& x) { loss(net.forward(x)).backward(); });
}

/// Calls its child at times, and uses a parameter of its own after it.
struct AtTimesImpl : nn::Hookable {
  AtTimesImpl() : child(4, 4) {
    register_module("child", child);
    scale = register_parameter("scale", torch::empty({4, 4}));
  }
  torch::Tensor forward(const torch::Tensor& x, bool with_child) {
    return (with_child ? child(x).tanh() : x).matmul(scale.t());
  }
  nn::Linear child;
  torch::Tensor scale;
};
using AtTimes = nn::Hooked<AtTimesImpl>;

struct WithAtTimes : nn::Hookable {
  WithAtTimes() : middle(4, 3) {
    register_module("part", part), register_module("middle", middle);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.4);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return middle(part(part(x, false).tanh(), true).tanh());
  }
  AtTimes part;
  nn::Linear middle;
};

TEST(OwnModules, AChildIsCalledAtTimes) {
  expect_gradient<WithAtTimes>(
      [](WithAtTimes& net, const torch::Tensor& x) { loss(net.forward(x)).backward(); });
}

// A penalty reads a weight outside of its module: before or after the module's own backward.
TEST(OwnModules, AWeightInTheLoss) {
  for (const int ranks : {1, 2, 3}) {
    const auto run = [&](OwnNet& net, const torch::Tensor& x) {
      const auto value = loss(net.forward(x));
      const auto penalty = 0.3 * (loss(net.first->weight) + loss(net.last->weight)) / ranks;
      (value + penalty).backward();
    };
    const double expected = plain_norm<OwnNet>([&](OwnNet& net) {
      for (int rank = 0; rank < ranks; ++rank) run(net, part_of_batch(rank, ranks));
    });
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement :
           {Placement::replicate, Placement::shard_optimizer, Placement::shard_gradients}) {
        for (const auto& rule : kUnitRules) {
          OwnNet net;
          auto model = fully_shard(
              net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, rule);
          model.slices();  // as for an optimizer
          for (int step = 0; step < 2; ++step) {
            for (const int times : {1, 2}) {  // reduced each time
              model.set_is_last_backward(times == 2);
              run(net, part_of_batch(mesh.axis("dp_shard").rank(), ranks));
              model.finish_backward();
              EXPECT_NEAR(model.gradient_norm().norm / expected, times, 1e-5);
            }
            model.finish_step();
          }
        }
      }
    });
  }
}

struct TwoPathsNet : nn::Hookable {
  TwoPathsNet() : one(4, 6), middle(4, 6), head(6, 9) {
    register_module("one", one), register_module("middle", middle), register_module("head", head);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.4);
  }
  torch::Tensor forward(const torch::Tensor& x, bool by_one) {
    const auto targets = torch::full({x.size(0)}, 4, torch::kLong);
    return head((by_one ? one(x) : middle(x)).tanh(), targets);
  }
  nn::Linear one, middle;
  nn::LanguageModelHead head;
};

// The head's second forward adds to a gradient whose first sum is under way.
TEST(OwnModules, TwoLossesThroughAHeadThatAddsInItsForward) {
  const auto twice = [](TwoPathsNet& net, const torch::Tensor& x) {
    net.forward(x, true).backward();
    net.forward(x * 2, false).backward();
  };
  for (int repeat = 0; repeat < 5; ++repeat) {
    expect_gradient<TwoPathsNet>(twice);
  }
}

TEST(OwnModules, AHookSeesTheGradientOfAHead) {
  const auto hooked = [](TwoPathsNet& net, const torch::Tensor& x) {
    net.head->weight.register_hook([](const torch::Tensor& gradient) { return gradient * 0.5; });
    net.forward(x, true).backward();
  };
  expect_gradient<TwoPathsNet>(hooked);
}

// What no backward of a step reached is zero before it is reduced, too.
TEST(OwnModules, GradientsAreReadBeforeTheyAreReduced) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    TwoPathsNet net;
    auto model =
        fully_shard(net, mesh, {.unit = {.placement = Placement::shard_optimizer}}, kUnitRules[0]);
    model.slices();  // as for an optimizer
    for (const bool by_one : {true, false}) {
      for (const bool last : {false, true}) {
        model.set_requires_gradient_sync(last);
        net.forward(batch(), by_one).backward();
        const auto& unused = by_one ? net.middle : net.one;
        EXPECT_EQ(unused->weight.grad().abs().max().item<float>(), 0);
        EXPECT_GT(net.head->weight.grad().abs().max().item<float>(), 0);
        model.finish_backward();
      }
      model.finish_step();
    }
  });
}

TEST(OwnModules, ACallPastTheHolderIsNamed) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto placement : {Placement::shard_optimizer, Placement::shard_gradients}) {
      OwnNet net;
      auto model = fully_shard(net, mesh, {.unit = {.placement = placement}}, kUnitRules[0]);
      const auto x = batch();
      loss(net.last(net.middle->forward(net.first(x).tanh()).tanh())).backward();
      expect_line([&] { model.finish_backward(); },
                  "middle.weight: expected its unit middle to be called");
    }
  });
}

// What an optimizer changed is gathered when its unit is called: before that a weight is refused, not out of date.
TEST(OwnModules, AWeightIsReadAsItIsOrNotAtAll) {
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kAllPlacements) {
        SCOPED_TRACE(std::to_string(static_cast<int>(placement)) + " on " + std::to_string(ranks));
        OwnNet net;
        const auto first_values = net.last->weight.detach().clone();
        auto model = fully_shard(net, mesh, {.unit = {.placement = placement}}, kUnitRules[0]);
        torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05));
        const bool gathers = ranks > 1 && placement != Placement::replicate;
        const auto refused = [&] {
          try {
            (void)net.last->weight.detach().clone();
            return false;
          } catch (const c10::Error& error) {
            EXPECT_THAT(error.what(), HasSubstr("call unshard()"));
            return true;
          }
        };
        if (placement != Placement::full_shard) {
          EXPECT_TRUE(torch::equal(net.last->weight, first_values));
        }
        for (int step = 0; step < 2; ++step) {
          loss(net.forward(part_of_batch(mesh.axis("dp_shard").rank(), ranks))).backward();
          model.finish_backward();
          optimizer.step();
          model.finish_step();
          EXPECT_EQ(refused(), gathers);
          // Called past its holder, so that nothing gathered its weight.
          if (gathers) {
            EXPECT_THROW(net.last->forward(torch::ones({1, 6})), c10::Error);
          }
        }
        model.unshard();
        EXPECT_FALSE(refused());
        EXPECT_FALSE(torch::equal(net.last->weight, first_values));
      }
    });
  }
}

// What was gathered ahead is of the values before.
TEST(OwnModules, AUnitGatheredAheadAndNotCalledIsGatheredAnew) {
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kAllPlacements) {
        for (const bool half : {false, true}) {
          SCOPED_TRACE(std::to_string(static_cast<int>(placement)) + (half ? " bf16" : " fp32"));
          OwnNet net;
          const auto expected = net.middle->weight.detach() * 2;
          parallel::UnitOptions unit{.placement = placement};
          if (half) unit.mixed_precision.param_dtype = torch::kBFloat16;
          auto model = fully_shard(net, mesh, {.unit = unit}, kUnitRules[0]);
          const auto x = batch().to(half ? torch::kBFloat16 : torch::kFloat32);
          const torch::NoGradGuard no_grad;
          net.forward(x);  // tells the order
          model.values_changed();
          net.first(x);  // the middle is on its way
          for (auto& slice : model.parameters()) slice.mul_(2);
          model.values_changed();
          model.unshard();
          expect_close(net.middle->weight.to(torch::kFloat32), expected,
                       {.absolute = half ? 1e-2 : 0, .relative = 0});
          model.reshard();
        }
      }
    });
  }
}

// torch::load puts one there.
TEST(OwnModules, AnotherTensorInAParametersPlaceIsNotLost) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto placement : {Placement::shard_optimizer, Placement::shard_gradients}) {
      OwnNet net;
      auto model = fully_shard(net, mesh, {.unit = {.placement = placement}}, kUnitRules[0]);
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05));
      loss(net.forward(batch())).backward();
      model.finish_backward();
      optimizer.step();
      model.finish_step();
      const auto given = torch::full({3, 6}, 0.25);
      net.last->weight.set_data(given.clone());
      model.unshard();
      model.reshard();
      model.unshard();
      EXPECT_TRUE(torch::equal(net.last->weight, given));
      model.reshard();
      net.last->weight.set_data(given + 1);
      model.values_changed();
      expect_line([&] { net.forward(batch()); }, "last.weight: does not lie where sharding put it");
    }
  });
}

TEST(OwnModules, AFrozenWeightThatIsOnlyReadStaysReadable) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const bool half : {false, true}) {
      OwnNet net;
      net.middle->weight.requires_grad_(false);
      const auto values = net.middle->weight.detach().clone();
      UnitOptions unit{.placement = Placement::shard_optimizer};
      if (half) unit.mixed_precision.param_dtype = torch::kBFloat16;
      auto model = fully_shard(net, mesh, {.unit = unit}, kUnitRules[0]);
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05));
      const auto x = batch().to(half ? torch::kBFloat16 : torch::kFloat32);
      for (int step = 0; step < 2; ++step) {
        loss(net.last(net.first(x).tanh())).backward();
        model.finish_backward();
        optimizer.step();
        model.finish_step();
        expect_close(net.middle->weight.to(torch::kFloat32), values,
                     {.absolute = half ? 1e-2 : 0, .relative = 0});
      }
    }
  });
}

TEST(OwnModules, TheUsualLoopWithZeroGrad) {
  torch::Tensor expected;
  {
    OwnNet net;
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss(net.forward(batch())).backward();
      optimizer.step();
    }
    expected = net.middle->weight.detach().clone();
  }
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kAllPlacements) {
        for (const bool set_to_none : {false, true}) {
          OwnNet net;
          auto model = fully_shard(net, mesh,
                                   {.unit = {.placement = placement}, .gradient_divide_factor = 1},
                                   kUnitRules[0]);
          torch::optim::SGD optimizer(model.parameters(),
                                      torch::optim::SGDOptions(0.05).momentum(0.9));
          for (int step = 0; step < 3; ++step) {
            optimizer.zero_grad(set_to_none);
            net.zero_grad(set_to_none);
            loss(net.forward(part_of_batch(mesh.axis("dp_shard").rank(), ranks))).backward();
            model.finish_backward();
            optimizer.step();
            model.finish_step();
            optimizer.step();  // nothing to do
          }
          model.unshard();
          expect_close(net.middle->weight.detach(), expected, {.absolute = 1e-5, .relative = 1e-5});
        }
      }
    });
  }
}

TEST(OwnModules, AForgottenFinishIsNamedAndFreedGradientsAreUndefined) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    OwnNet net;
    auto model = fully_shard(net, mesh, {}, kUnitRules[0]);
    loss(net.forward(batch())).backward();
    EXPECT_THROW(model.finish_step(), c10::ValueError);
    model.finish_backward();
    EXPECT_FALSE(net.parameters()[0].grad().defined());
    model.finish_step();
    EXPECT_FALSE(model.parameters()[0].grad().defined());
  });
}

TEST(OwnModules, ABackwardAfterTheModelIsGoneIsNamed) {
  on_mesh({.shape = {.dp_shard = 1}}, [](const mesh::DeviceMesh& mesh) {
    torch::Tensor value;
    {
      auto net = std::make_shared<OwnNet>();
      auto model = fully_shard(*net, mesh, {}, kUnitRules[0]);
      value = loss(net->forward(batch()));
    }
    EXPECT_THROW(value.backward(), c10::ValueError);
  });
}

}  // namespace
}  // namespace tessera::parallel
