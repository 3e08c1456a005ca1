#include "tessera/mesh/mesh.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tessera/base/error.h"
#include "tests/support/ranks.h"

namespace tessera::mesh {
namespace {

TEST(DeviceMesh, OneRankNeedsNoNetwork) {
  const DeviceMesh mesh;
  EXPECT_EQ(mesh.world().size(), 1);
  EXPECT_EQ(mesh.axis("tp").size(), 1);
  auto tensor = at::ones({3});
  mesh.axis({"dp_replicate", "dp_shard"}).all_reduce(tensor).wait();
  expect_close(tensor, at::ones({3}));
  EXPECT_TRUE(mesh.used_axes().empty());
}

TEST(DeviceMesh, AWrongWorldSizeIsRefusedBeforeAnythingConnects) {
  EXPECT_THROW(DeviceMesh({.tp = 2}, {.rank = 0, .world_size = 3, .master_port = 1}), UserError);
}

TEST(DeviceMesh, EachAxisSumsOverItsOwnRanks) {
  on_mesh({.shape = {.dp_replicate = 2, .tp = 2}}, [](const DeviceMesh& mesh) {
    const auto sum_over = [&](const Axis& axis) {
      auto tensor = at::full({1}, static_cast<double>(1 << mesh.rank()));
      axis.all_reduce(tensor).wait();
      return static_cast<int>(tensor.item<float>());
    };
    EXPECT_EQ(sum_over(mesh.axis("tp")), mesh.rank() < 2 ? 0b0011 : 0b1100);
    EXPECT_EQ(sum_over(mesh.axis("dp_replicate")), mesh.rank() % 2 == 0 ? 0b0101 : 0b1010);
    EXPECT_EQ(sum_over(mesh.world()), 0b1111);
    EXPECT_EQ(mesh.axis("tp").rank(), mesh.coordinates(mesh.rank())[4]);
    EXPECT_EQ(mesh.used_axes().size(), 3u);
  });
}

TEST(DeviceMesh, ExpertsHaveAxesOfTheirOwnOverTheSameRanks) {
  on_mesh({.shape = {.dp_shard = 4, .ep = 2}}, [](const DeviceMesh& mesh) {
    const auto sum_over = [&](const Axis& axis) {
      auto tensor = at::full({1}, static_cast<double>(1 << mesh.rank()));
      axis.all_reduce(tensor).wait();
      return static_cast<int>(tensor.item<float>());
    };
    EXPECT_EQ(sum_over(mesh.axis("ep")), mesh.rank() < 2 ? 0b0011 : 0b1100);
    EXPECT_EQ(sum_over(mesh.axis("expert_shard")), mesh.rank() % 2 == 0 ? 0b0101 : 0b1010);
    EXPECT_EQ(mesh.axis("expert_shard").name(), "expert_shard");
    EXPECT_EQ(&mesh.axis({"dp_shard", "ep", "tp"}), &mesh.axis("dp_shard"));
    EXPECT_EQ(mesh.axis("expert_replicate").size(), 1);
    EXPECT_EQ(sum_over(mesh.world()), 0b1111);
  });
}

TEST(DeviceMesh, DimensionsOfOneRankAddNoGroups) {
  on_mesh({.shape = {.dp_shard = 3}}, [](const DeviceMesh& mesh) {
    mesh.axis({"dp_replicate", "dp_shard"}).barrier();
    EXPECT_EQ(mesh.axis("dp_shard").counters().barrier.calls, 1);
    EXPECT_EQ(mesh.used_axes().size(), 1u);
    mesh.world().barrier();  // on a channel of its own
    EXPECT_EQ(mesh.axis("dp_shard").counters().barrier.calls, 1);
    EXPECT_EQ(mesh.used_axes().size(), 2u);
    EXPECT_EQ(mesh.axis({"tp", "cp"}).size(), 1);
  });
}

TEST(DeviceMesh, ChannelsAreGroupsOfTheirOwn) {
  on_mesh({.shape = {.dp_shard = 3}}, [](const DeviceMesh& mesh) {
    const auto& gather = mesh.axis("dp_shard");
    const auto& reduce = mesh.axis("dp_shard", {.channel = "reduce"});
    EXPECT_EQ(reduce.name(), "dp_shard/reduce");
    EXPECT_EQ(reduce.rank(), gather.rank());
    EXPECT_EQ(reduce.size(), 3);
    EXPECT_EQ(&mesh.axis("dp_shard", {.channel = "reduce"}), &reduce);
    // Each has its own order: rank 0 starts on one what the others start last.
    auto a = at::ones({1000}), b = at::ones({1000});
    if (mesh.rank() == 0) {
      reduce.all_reduce(b).wait();
      gather.all_reduce(a).wait();
    } else {
      auto first = gather.all_reduce(a);
      reduce.all_reduce(b).wait();
      first.wait();
    }
    expect_close(a, at::full({1000}, 3.0));
    expect_close(b, at::full({1000}, 3.0));
    EXPECT_EQ(gather.counters().all_reduce.calls, 1);
    EXPECT_EQ(reduce.counters().all_reduce.calls, 1);
    EXPECT_GT(reduce.buffer_bytes(), 0);
  });
  const DeviceMesh alone;
  EXPECT_EQ(alone.axis("dp_shard", {.channel = "reduce"}).size(), 1);
}

TEST(DeviceMesh, SplitsAnAxisIntoConsecutiveParts) {
  on_mesh({.shape = {.dp_replicate = 2, .dp_shard = 4}}, [](const DeviceMesh& mesh) {
    const auto sum_over = [&](const Axis& axis) {
      auto tensor = at::full({1}, static_cast<double>(1 << mesh.rank()));
      axis.all_reduce(tensor).wait();
      return static_cast<int>(tensor.item<float>());
    };
    const auto& pair = mesh.axis("dp_shard", {.split = 2});
    EXPECT_EQ(pair.name(), "dp_shard:2");
    EXPECT_EQ(pair.rank(), mesh.rank() % 2);
    EXPECT_EQ(sum_over(pair), 0b11 << mesh.rank() / 2 * 2);
    EXPECT_EQ(sum_over(mesh.axis("dp_shard", {.split = 2, .channel = "gather"})),
              0b11 << mesh.rank() / 2 * 2);
    EXPECT_EQ(&mesh.axis("dp_shard", {.split = 4}), &mesh.axis("dp_shard"));
    EXPECT_EQ(mesh.axis("dp_shard", {.split = 1}).size(), 1);
    EXPECT_EQ(sum_over(mesh.world()), 0xff);
  });
}

TEST(DeviceMesh, ASplitThatDoesNotDivideIsRefused) {
  const DeviceMesh mesh;
  try {
    mesh.axis("dp_shard", {.split = 2});
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "split of axis dp_shard: expected a divisor of its 1 ranks, got 2");
  }
}

TEST(DeviceMesh, AxesMadeInDifferentOrderAreNamedOnBothRanks) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const DeviceMesh& mesh) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      mesh.axis("dp_shard", {.channel = mesh.rank() == 0 ? "gather" : "reduce"});
      FAIL() << "no error";
    } catch (const c10::DistError& error) {
      const std::string message = error.what_without_backtrace();
      EXPECT_THAT(message, ::testing::HasSubstr("makes axis dp_shard/gather"));
      EXPECT_THAT(message, ::testing::HasSubstr("makes axis dp_shard/reduce"));
      EXPECT_THAT(message, ::testing::EndsWith("must first use their axes in the same order"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    mesh.axis("dp_shard").barrier();  // the mesh itself still works
  });
}

}  // namespace
}  // namespace tessera::mesh
