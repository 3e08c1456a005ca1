// Processes are started once for each number of ranks. TESSERA_OWN_MODULE=name runs the cases whose
// names contain it.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/own_modules/harness.h"
#include "tests/support/ranks.h"

namespace tessera::own_modules {
namespace {

class OwnModulesTest : public RankTest {};

TEST_P(OwnModulesTest, AreThePlainOnes) {
  on_mesh({.shape = {.dp_shard = GetParam()},
           .timeout = std::chrono::seconds(20),
           .deadline = std::chrono::seconds(300)},
          [](const mesh::DeviceMesh& mesh) { run_cases(mesh); });
}
INSTANTIATE_TEST_SUITE_P(Ranks, OwnModulesTest, ::testing::Values(1, 2, 3));

TEST(OwnModules, AreThePlainOnesOnReplicasOfShards) {
  on_mesh({.shape = {.dp_replicate = 2, .dp_shard = 2},
           .timeout = std::chrono::seconds(20),
           .deadline = std::chrono::seconds(300)},
          [](const mesh::DeviceMesh& mesh) { run_cases(mesh); });
}

TEST(OwnModules, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const auto& which : all_cases()) EXPECT_TRUE(names.insert(which.name).second) << which.name;
  RecordProperty("num_cases", static_cast<int>(names.size()));
}

}  // namespace
}  // namespace tessera::own_modules
