// The whole model between unshard() and reshard(), wherever in a step that is.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/parallel/data/testing.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

struct Variant {
  Placement placement = Placement::replicate;
  bool mixed = false, offloaded = false;

  DataParallelOptions options() const {
    DataParallelOptions options{.unit = {.placement = placement}};
    if (mixed) options.unit.mixed_precision.param_dtype = torch::kBFloat16;
    options.offload.offload_params = offloaded;
    return options;
  }
  std::string text() const {
    return std::to_string(static_cast<int>(placement)) + (mixed ? " mixed" : "") +
           (offloaded ? " offloaded" : "");
  }
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const auto placement : kPlacements) {
    for (const bool mixed : {false, true}) {
      for (const bool offloaded : {false, true}) all.push_back({placement, mixed, offloaded});
    }
  }
  return all;
}

/// Calls `body` with each variant of a sharded Net on 1, 2 and 3 ranks.
void on_variants(const std::function<void(const Variant&, const mesh::DeviceMesh&)>& body) {
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto& variant : variants()) {
        SCOPED_TRACE(variant.text());
        body(variant, mesh);
      }
    });
  }
}

struct TrainedNet {
  TrainedNet(const Variant& variant, const mesh::DeviceMesh& mesh)
      : model(fully_shard(net, mesh, variant.options(), kRules[0])),
        optimizer(model.parameters(), torch::optim::AdamWOptions(0.05)),
        rank(mesh.rank()),
        ranks(static_cast<int>(mesh.world().size())) {}
  torch::Tensor loss(int step) {
    return loss_of(net, part_of_batch(step, rank, ranks).to(net.first->weight.scalar_type()));
  }
  void backward(int step) {
    loss(step).backward();
    model.finish_backward();
  }
  void train(int step) {
    backward(step);
    optimizer.step();
    model.finish_step();
  }
  std::vector<torch::Tensor> values() {
    model.unshard();
    auto values = values_of(net);
    model.reshard();
    return values;
  }

  Net net;
  DataParallel model;
  torch::optim::AdamW optimizer;
  int rank, ranks;
};

void expect_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

TEST(Unshard, WhatIsWrittenUntilReshardStays) {
  for (const bool mixed : {false, true}) {
    on_mesh({.shape = {.dp_shard = 3}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kPlacements) {
        Net net;
        UnitOptions unit{.placement = placement};
        if (mixed) unit.mixed_precision.param_dtype = torch::kBFloat16;
        auto model = fully_shard(net, mesh, {.unit = unit}, kRules[0]);
        model.unshard();
        const auto untouched = net.last->weight.detach().clone();
        {
          const torch::NoGradGuard no_grad;
          net.block0->in->weight.fill_(0.25);
          net.first->bias.data().fill_(0.5);  // which no version counter tells of
          net.block1->out->weight.set_(torch::full({6, 6}, 0.75, net.first->weight.options()));
        }
        model.reshard();
        model.values_changed();
        model.unshard();
        EXPECT_TRUE((net.block0->in->weight == 0.25).all().item<bool>());
        EXPECT_TRUE((net.first->bias == 0.5).all().item<bool>());
        EXPECT_TRUE((net.block1->out->weight == 0.75).all().item<bool>());  // as torch::load does
        EXPECT_TRUE(torch::equal(net.last->weight, untouched));
        model.reshard();
        // In full precision what was not written keeps all its bits.
        Net fresh;
        for (const auto& part : model.parts()) {
          if (part.extent.name != "last.weight") continue;
          const auto whole = fresh.last->weight.detach().flatten();
          EXPECT_TRUE(torch::equal(part.extent.values,
                                   whole.narrow(0, part.extent.begin, part.extent.values.numel())));
        }
      }
    });
  }
}

// A program that saves, or looks at its weights, before it ends the step.
TEST(Unshard, ShowsAndKeepsWhatAnOptimizerWroteBeforeFinishStep) {
  on_variants([](const Variant& variant, const mesh::DeviceMesh& mesh) {
    TrainedNet plain(variant, mesh), looked(variant, mesh);
    for (int step = 0; step < 3; ++step) {
      plain.train(step);
      const auto want = plain.values();

      looked.backward(step);
      looked.values();
      looked.optimizer.step();
      expect_equal(looked.values(), want);
      expect_equal(looked.values(), want);
      if (step == 0) {
        expect_line([&] { looked.backward(step); },
                    "expected finish_step() after the optimizer's step");
      }
      looked.model.finish_step();
      expect_equal(looked.values(), want);
    }
  });
}

// What was gathered before the step would take the place of what the step wrote.
TEST(Unshard, AStepInBetweenIsRefusedOrKept) {
  on_variants([](const Variant& variant, const mesh::DeviceMesh& mesh) {
    TrainedNet plain(variant, mesh), unsharded(variant, mesh);
    for (int step = 0; step < 3; ++step) {
      plain.train(step);

      unsharded.model.unshard();
      unsharded.backward(step);
      unsharded.optimizer.step();
      const auto& plan = unsharded.model.units()[0].buffers()[0].plan();
      if (!plan.slice_in_whole) {
        expect_line([&] { unsharded.model.reshard(); },
                    "expected finish_step() after the optimizer's step");
      } else {
        unsharded.model.reshard();
      }
      unsharded.model.finish_step();
      expect_equal(unsharded.values(), plain.values());
    }
  });
}

TEST(Unshard, NaNInAWeightIsNotTakenForAChange) {
  on_variants([](const Variant& variant, const mesh::DeviceMesh& mesh) {
    TrainedNet trained(variant, mesh);
    trained.model.unshard();
    for (auto& parameter : trained.net.parameters()) {
      parameter.data().fill_(std::numeric_limits<float>::quiet_NaN());
    }
    trained.model.reshard();
    trained.backward(0);
    trained.backward(1);
    trained.values();
    trained.model.finish_step();
  });
}

TEST(Unshard, AnotherTypeOrShapeIsRefused) {
  on_variants([](const Variant& variant, const mesh::DeviceMesh& mesh) {
    TrainedNet trained(variant, mesh);
    trained.model.unshard();
    auto weight = trained.net.block0->in->weight;
    const torch::NoGradGuard no_grad;
    weight.set_data(torch::zeros({12, 12}, weight.options()));
    expect_line([&] { trained.model.reshard(); }, "expected the shape [6, 6], got [12, 12]");
    weight.set_data(torch::zeros({6, 6}, torch::kFloat64));
    expect_line([&] { trained.model.reshard(); }, "was moved or cast after it was sharded");

    std::stringstream file;
    torch::serialize::OutputArchive out;
    out.write("weight", torch::full({6, 6}, 0.75));
    out.save_to(file);
    torch::serialize::InputArchive in;
    in.load_from(file);
    weight.set_data(torch::zeros({6, 6}, trained.net.last->weight.options()));
    in.read("weight", weight);
    if (variant.mixed) {
      expect_line([&] { trained.model.reshard(); }, "got bytes of another type");
    } else {
      trained.model.reshard();
      trained.model.unshard();
      EXPECT_TRUE((weight == 0.75).all().item<bool>());
    }
  });
}

// Between a step and finish_step() there is no place for it.
TEST(Unshard, WhatWasWrittenBeforeItAfterAStepIsRefusedOrKept) {
  on_variants([](const Variant& variant, const mesh::DeviceMesh& mesh) {
    TrainedNet trained(variant, mesh);
    trained.backward(0);
    trained.optimizer.step();
    if (variant.placement == Placement::full_shard) return;  // there is nothing to write to
    const torch::NoGradGuard no_grad;
    const bool apart = !trained.model.units()[0].buffers()[0].plan().slice_in_whole;
    trained.net.last->weight.fill_(0.5);
    if (apart || trained.model.units()[0].sharded()) {
      expect_line([&] { trained.model.unshard(); }, "last.weight: was written where that is lost");
    } else {
      trained.model.unshard();
      EXPECT_TRUE((trained.net.last->weight == 0.5).all().item<bool>());
    }
  });
}

// A part of the model that had no gradient did not change (two models in one module).
TEST(Unshard, ABackwardOfWhatDidNotChangeGoesOn) {
  on_mesh({.shape = {.dp_replicate = 2}}, [](const mesh::DeviceMesh& mesh) {
    Net net;
    auto model = replicate(net, mesh, {});
    torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.05));
    const auto early = net.first(batch(0)).square().sum();
    net.block0(batch(1).repeat({1, 2}).slice(1, 0, 6)).square().sum().backward();
    model.finish_backward();
    optimizer.step();
    model.finish_step();
    EXPECT_NO_THROW(early.backward());
    model.finish_backward();
    EXPECT_GT(net.first->weight.grad().abs().sum().item<double>(), 0);
    model.finish_step();
  });
}

// As PyTorch: what a backward needs of a weight is gone once the weight was updated.
TEST(Unshard, ABackwardOfAForwardBeforeTheStepIsRefused) {
  on_variants([](const Variant& variant, const mesh::DeviceMesh& mesh) {
    TrainedNet trained(variant, mesh);
    const auto early = trained.loss(0);
    trained.train(1);
    EXPECT_THROW(early.backward(), c10::Error);
  });
}

}  // namespace
}  // namespace tessera::parallel
