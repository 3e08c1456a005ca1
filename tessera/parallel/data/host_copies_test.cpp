// Slices on the host of a device whose copies are late.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/parallel/data/testing.h"
#include "tests/support/expect.h"
#include "tests/support/late_copies.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

struct Offload {
  Placement placement = Placement::full_shard;
  bool mixed = false, by_copy = false;
  double fraction = 1;

  DataParallelOptions options() const {
    DataParallelOptions options{.unit = {.placement = placement}};
    if (mixed) {
      options.unit.mixed_precision = {.param_dtype = torch::kBFloat16,
                                      .reduce_dtype = torch::kFloat32};
    }
    options.offload = {
        .offload_params = !by_copy, .offload_optimizer = by_copy, .fraction = fraction};
    return options;
  }
  std::string text() const {
    return std::to_string(static_cast<int>(placement)) + (mixed ? " mixed" : "") +
           (by_copy ? " by copy" : "") + (fraction < 1 ? " a part" : "");
  }
};

std::vector<Offload> offloads() {
  std::vector<Offload> all;
  for (const auto placement : kPlacements) {
    for (const bool mixed : {false, true}) {
      for (const bool by_copy : {false, true}) {
        all.push_back({placement, mixed, by_copy});
        all.push_back({placement, mixed, by_copy, /*fraction=*/0.6});
      }
    }
  }
  return all;
}

struct OffloadedNet {
  OffloadedNet(const DataParallelOptions& options, const mesh::DeviceMesh& mesh)
      : model(fully_shard(net, mesh, options, kRules[0])),
        optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.5)),
        rank(mesh.rank()),
        ranks(static_cast<int>(mesh.world().size())) {}

  torch::Tensor loss(int step) {
    return loss_of(net, part_of_batch(step, rank, ranks).to(net.first->weight.scalar_type()));
  }
  /// Two micro-batches and a look at other data between them and the optimizer's step, which writes what gathers read.
  torch::Tensor train(int step) {
    const auto first = loss(3 * step);
    first.backward();
    model.finish_backward();
    const auto second = loss(3 * step + 1);
    second.backward();
    model.finish_backward();
    const auto seen = [&] {
      const torch::NoGradGuard no_grad;
      return loss(3 * step + 2);
    }();
    optimizer.step();
    model.finish_step();
    return torch::stack({first, second, seen}).detach();
  }

  Net net;
  DataParallel model;
  torch::optim::SGD optimizer;
  int rank, ranks;
};

using Shapes = std::vector<mesh::MeshShape>;

void on_shapes(const Shapes& shapes,
               const std::function<void(const Offload&, const mesh::DeviceMesh&)>& body) {
  for (const auto& shape : shapes) {
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto& offload : offloads()) {
        SCOPED_TRACE(offload.text());
        body(offload, mesh);
      }
    });
  }
}

TEST(HostCopies, LateOnesTrainAsThoseThatAreWaitedFor) {
  const Shapes shapes{
      {.dp_shard = 1}, {.dp_shard = 2}, {.dp_shard = 3}, {.dp_replicate = 2, .dp_shard = 2}};
  on_shapes(shapes, [](const Offload& offload, const mesh::DeviceMesh& mesh) {
    testing::Log log;
    auto late_options = offload.options();
    late_options.copy_queue = testing::late_copies({"in", "out"}, log);
    OffloadedNet plain(offload.options(), mesh), late(late_options, mesh);
    for (int step = 0; step < 3; ++step) {
      // Sums of float32 are not rounded in one order: fused or not.
      expect_close(late.train(step), plain.train(step), {.absolute = 1e-6, .relative = 1e-5});
    }
    const auto asked = [&](const std::string& what) { return std::ranges::count(log, what); };
    EXPECT_GT(asked("out"), 0);
    const bool has_copies =
        offload.by_copy && offload.placement == Placement::full_shard && mesh.shape().dp_shard > 1;
    EXPECT_EQ(asked("in") > 0, !has_copies);
  });
}

struct Case {
  std::string text;
  ReshardAfterForward reshard = true;
  bool blocks_first = false;  // sharded before the whole model
  bool skips = false;         // a block, which was gathered ahead, in some steps
  bool looks = false;         // at all weights between the step and its end
  bool in_backward = false;   // updates
};

std::vector<torch::Tensor> train(const Case& a, DataParallelOptions options,
                                 const mesh::DeviceMesh& mesh) {
  options.unit.reshard_after_forward = a.reshard;
  options.update_in_backward = a.in_backward;
  Net net;
  if (a.blocks_first) {
    fully_shard(*net.block0, mesh, options);
    fully_shard(*net.block1, mesh, options);
  }
  auto model = fully_shard(net, mesh, options, kRules[0]);
  const auto update = [&](size_t i) {
    const auto& slice = model.slices()[i];
    slice.parameter.sub_(slice.gradient, 0.05);
  };
  if (a.in_backward) model.on_reduced(update);
  for (int step = 0; step < 4; ++step) {
    net.with_block1 = !a.skips || step % 2 == 0;
    loss_of(net, part_of_batch(step, mesh.rank(), 2)).backward();
    model.finish_backward();
    for (size_t i = 0; !a.in_backward && i < model.slices().size(); ++i) update(i);
    if (a.looks) model.unshard(), model.reshard();
    model.finish_step();
  }
  model.unshard();
  auto values = values_of(net);
  model.reshard();
  return values;
}

TEST(HostCopies, LateOnesTrainAsThoseThatAreWaitedForWhereverUnitsComeFrom) {
  const std::vector<Case> cases{
      {.text = "stays", .reshard = false},    {.text = "to one rank", .reshard = 1},
      {.text = "to two ranks", .reshard = 2}, {.text = "blocks first", .blocks_first = true},
      {.text = "skips", .skips = true},       {.text = "looks", .looks = true}};
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto& a : cases) {
      for (const bool by_copy : {false, true}) {
        SCOPED_TRACE(a.text + (by_copy ? " by copy" : ""));
        testing::Log log;
        const auto plain = Offload{.by_copy = by_copy}.options();
        auto late = plain;
        late.copy_queue = testing::late_copies({"in", "out"}, log);
        const auto expected = train(a, plain, mesh), found = train(a, late, mesh);
        for (size_t i = 0; i < expected.size(); ++i) {
          expect_close(found[i], expected[i], {.absolute = 1e-6, .relative = 1e-5});
        }
      }
    }
  });
}

TEST(HostCopies, AGradientLeavesWhileTheNextOneIsComputed) {
  on_mesh({.shape = {.dp_shard = 1}}, [](const mesh::DeviceMesh& mesh) {
    testing::Log log;
    auto options = Offload{}.options();
    options.copy_queue = testing::late_copies({"in", "out"}, log);
    OffloadedNet net(options, mesh);
    const auto loss = net.loss(0);
    log.clear();
    loss.backward();
    net.model.finish_backward();
    std::erase_if(log, [](const auto& line) { return line.ends_with("in"); });
    // The next one starts when the one before has arrived; the last is waited for at the end.
    testing::Log expected;
    for (int unit = 0; unit < 6; ++unit) expected.insert(expected.end(), {"out", "finish out"});
    EXPECT_EQ(log, expected);
  });
}

TEST(HostCopies, AnErrorInABackwardLeavesNothingOnTheWay) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    testing::Log log;
    auto options = Offload{}.options();
    options.copy_queue = testing::late_copies({"in", "out"}, log);
    OffloadedNet plain(Offload{}.options(), mesh);
    {
      OffloadedNet left(options, mesh);
      left.loss(0).backward();  // what is on its way ends with the model
    }
    OffloadedNet late(options, mesh);
    late.loss(0);  // nor is a gather waited for
    for (int step = 0; step < 2; ++step) {
      expect_close(late.train(step), plain.train(step), {.absolute = 1e-6, .relative = 1e-5});
    }
  });
}

}  // namespace
}  // namespace tessera::parallel
