// Tests whose ranks are real processes.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <set>

#include "tessera/mesh/mesh.h"
#include "tests/support/expect.h"

namespace tessera {

struct RankOptions {
  mesh::MeshShape shape;                                           ///< num_ranks() processes
  std::chrono::milliseconds timeout = std::chrono::seconds(60);    ///< of the mesh's operations
  std::chrono::milliseconds deadline = std::chrono::seconds(120);  ///< of the processes
  comm::Transport transport = {};
  std::set<int> killed = {};  ///< ranks that must end by SIGKILL; all others must pass
};

/// Note [Ranks of a test]. The parent starts this very program once per rank (Note [Rank server]),
/// with --gtest_filter set to the running test and the rank in the environment; the child runs the whole test again, and in `body` it is a rank. So what stands outside `body`
/// runs in parent and children alike, and must be the same in all. Every child has one OpenMP
/// thread, ends with the parent, and is killed at the deadline, or 5 s after another rank failed.
/// The test fails with the output of every rank that failed. One rank: runs in the parent's own
/// process.
void on_mesh(const RankOptions& options, const std::function<void(const mesh::DeviceMesh&)>& body);

/// `num_ranks` ranks on the dp_replicate axis.
void on_ranks(int num_ranks, const std::function<void(const mesh::Axis&)>& body);

/// A fixture for TEST_F, and for TEST_P with the number of ranks as parameter.
class RankTest : public ::testing::TestWithParam<int> {};

}  // namespace tessera
