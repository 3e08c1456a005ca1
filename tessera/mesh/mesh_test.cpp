#include "tessera/mesh/mesh.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

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
    EXPECT_EQ(mesh.axis("tp").rank(), mesh.coordinates(mesh.rank())[5]);
    EXPECT_EQ(mesh.used_axes().size(), 3u);
  });
}

TEST(DeviceMesh, DimensionsOfOneRankAddNoGroups) {
  on_mesh({.shape = {.dp_shard = 3}}, [](const DeviceMesh& mesh) {
    mesh.world().barrier();
    EXPECT_EQ(mesh.axis({"dp_replicate", "dp_shard"}).counters().barrier.calls, 1);
    EXPECT_EQ(mesh.axis("dp_shard").counters().barrier.calls, 1);
    EXPECT_EQ(mesh.used_axes().size(), 1u);
    EXPECT_EQ(mesh.axis({"tp", "cp"}).size(), 1);
  });
}

}  // namespace
}  // namespace tessera::mesh
