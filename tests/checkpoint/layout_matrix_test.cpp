// A checkpoint of every layout, loaded under every other: every element of the training state is
// where it belongs.
#include <gtest/gtest.h>

#include <bit>

#include "tessera/checkpoint/saver.h"
#include "tessera/train/checkpointing.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"

namespace tessera {
namespace {

struct Layout {
  std::string placement;
  int dp_replicate = 1, dp_shard = 1;
  std::string units = "block";
  bool offload = false;
  int tp = 1, pp = 1;
  std::string schedule = "1F1B";

  mesh::MeshShape shape() const {
    return {.pp = pp, .dp_replicate = dp_replicate, .dp_shard = dp_shard, .tp = tp};
  }
  std::string name() const {
    return fmt::format("{}_{}x{}x{}x{}_{}_{}", placement, pp, dp_replicate, dp_shard, tp, units,
                       schedule);
  }
};

std::vector<Layout> layouts() {
  std::vector<Layout> list;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    list.push_back({"replicate", ranks, 1});
    for (const auto* placement : {"shard_optimizer", "shard_gradients", "full_shard"}) {
      list.push_back({placement, 1, ranks});
    }
  }
  list.push_back({"full_shard", 2, 2});
  list.push_back({"full_shard", 2, 4});
  list.push_back({"full_shard", 1, 3, "size"});
  list.push_back({"full_shard", 1, 2, "model", /*offload=*/true});
  list.push_back({"replicate", 1, 1, "block", false, /*tp=*/4});
  list.push_back({"shard_optimizer", 1, 3, "block", false, /*tp=*/2});
  list.push_back({"full_shard", 2, 2, "block", false, /*tp=*/2});
  list.push_back({"replicate", 1, 1, "block", false, 1, /*pp=*/2});
  list.push_back({"full_shard", 1, 2, "block", false, /*tp=*/2, /*pp=*/2});
  list.push_back({"full_shard", 1, 2, "model", false, /*tp=*/1, /*pp=*/2, "ZBVZeroBubble"});
  return list;
}

train::Run run_of(const Layout& layout, bool tied, const mesh::DeviceMesh& mesh) {
  auto job = parity::recorded_job(/*seq_len=*/64, /*global_batch=*/8);
  job.model.preset = "micro";
  job.model.tie_embeddings = tied;
  job.model.num_layers = 4;  // stages of a V take one each
  if (layout.pp > 1) job.train.micro_batch = 1;
  job.parallel = {.num_ranks = layout.shape().num_ranks(),
                  .placement = *value_named<parallel::Placement>(layout.placement),
                  .dp_replicate = layout.dp_replicate,
                  .dp_shard = layout.dp_shard,
                  .tp = layout.tp,
                  .pp = layout.pp,
                  .pipeline_schedule = layout.schedule,
                  .units = *value_named<parallel::Units>(layout.units),
                  .min_num_params = layout.units == "size" ? 9000 : 1'000'000,
                  .offload_params = layout.offload ? parallel::OffloadParams::host
                                                   : parallel::OffloadParams::none};
  return train::assemble(job, mesh);
}

/// A function of tensor and position alone, of any bits but NaN's.
float expected(const std::string& name, int64_t position) {
  uint64_t hash = std::hash<std::string>()(name) + static_cast<uint64_t>(position) + 1;
  hash *= 0x9E3779B97F4A7C15;
  hash ^= hash >> 29;
  const auto bits = static_cast<uint32_t>(hash);
  return std::bit_cast<float>((bits & 0x7F800000) == 0x7F800000 ? bits & 0xBFFFFFFF : bits);
}

void fill(const std::vector<checkpoint::HeldExtent>& held) {
  for (const auto& part : held) {
    const auto& extent = part.extent;
    auto* data = part.values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < extent.length; ++i)
      data[i] = expected(extent.name, extent.stripe.position(extent.begin + i));
  }
}

int64_t wrong_elements(const std::vector<checkpoint::HeldExtent>& held) {
  int64_t wrong = 0;
  for (const auto& part : held) {
    const auto& extent = part.extent;
    const auto* data = part.values.const_data_ptr<float>();
    for (int64_t i = 0; i < extent.length; ++i) {
      wrong +=
          std::bit_cast<uint32_t>(data[i]) !=
          std::bit_cast<uint32_t>(expected(extent.name, extent.stripe.position(extent.begin + i)));
    }
  }
  return wrong;
}

/// Saves under each of `layouts`, reads each under each.
void expect_all_read_all(const std::vector<Layout>& layouts, bool tied) {
  const SharedFolder folder;
  for (const auto& layout : layouts) {
    on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
      auto run = run_of(layout, tied, mesh);
      const auto held = train::held_state(run);
      fill(held);
      checkpoint::Saver saver(run.save_axis, held,
                              {.directory = folder.path() / layout.name(), .async = false});
      saver.save({.step = 7, .state = {{"step", 7}}});
      for (const auto& report : saver.take_reports()) EXPECT_EQ(report.error, "");
    });
  }
  for (const auto& layout : layouts) {
    on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
      auto run = run_of(layout, tied, mesh);
      for (const auto& other : layouts) {
        const auto held = train::held_state(run);
        for (const auto& part : held) part.values.zero_();
        const auto counts =
            train::load_checkpoint(run, folder.path() / other.name() / "step_00000007");
        EXPECT_EQ(wrong_elements(held), 0) << other.name() << " read as " << layout.name();
        EXPECT_EQ(counts.step, 7);
      }
      // What the next forward computes with is the same, too.
      run.parallel.unshard();
      for (const auto& item : run.model->named_parameters()) {
        const auto last = item.value().numel() - 1;
        const auto divided = run.tensor_parts.find(item.key());
        const bool whole = divided == run.tensor_parts.end();
        EXPECT_EQ(item.value().view(-1)[-1].item<float>(),
                  expected(item.key(), whole ? last : divided->second.stripe.position(last)))
            << item.key();
      }
    });
  }
}

TEST(LayoutMatrix, EveryLayoutReadsEveryOther) { expect_all_read_all(layouts(), /*tied=*/false); }

// The table of words lies on the first rank of a pipeline and on its last.
TEST(LayoutMatrix, TiedTablesToo) {
  expect_all_read_all({{"replicate", 1, 1},
                       {"full_shard", 1, 3, "block", false, 1, /*pp=*/2},
                       {"full_shard", 1, 2, "block", false, /*tp=*/2, /*pp=*/2},
                       {"replicate", 1, 1, "block", false, 1, /*pp=*/2, "ZBVZeroBubble"}},
                      /*tied=*/true);
}

}  // namespace
}  // namespace tessera
