// What a rank of a mixture holds, its experts shared out over ranks or not, beside the estimate.
#include <gtest/gtest.h>

#include "tessera/kernels/cpu/memory.h"
#include "tessera/train/memory_and_traffic.h"
#include "tests/parity/layout.h"

namespace tessera::parity {
namespace {

class ExpertMemoryTest : public ::testing::TestWithParam<Layout> {};

// Tokens take experts in turn, as the estimate takes them to be spread.
TEST_P(ExpertMemoryTest, IsWhatIsEstimated) {
  auto job = recorded_job(/*seq_len=*/256, /*global_batch=*/8);
  job.model.path = "tests/fixtures/experts_small";
  job.moe.force_balance = true;
  job = with_layout(job, GetParam());
  on_mesh({.shape = GetParam().shape}, [&](const mesh::DeviceMesh& mesh) {
    kernels::install_caching_allocator();
    auto run = train::assemble(job, mesh);
    for (int64_t step = 0; step < 2; ++step) train::train_step(run, step);
    constexpr double kTensors = 0.03;
    const std::map<std::string, double> tolerances{{"parameters", 0.005},
                                                   {"optimizer", 0.005},
                                                   {"activations", kTensors},
                                                   {"at once", kTensors}};
    size_t found = 0;
    for (const auto& part : train::memory_account(run)) {
      const auto tolerance = tolerances.find(part.name);
      if (tolerance == tolerances.end()) continue;
      ++found;
      const double ratio = static_cast<double>(part.measured) / static_cast<double>(part.predicted);
      // A reduction that is over before the next unit's begins has freed its unit's gradients: the
      // prediction is of two at once.
      const bool may_be_less = part.name == "at once" && mesh.shape().dp_shard > 1;
      const auto what = fmt::format("{}: {} of {}", part.name, part.measured, part.predicted);
      EXPECT_LE(ratio, 1 + tolerance->second) << what;
      EXPECT_GE(ratio, 1 - (may_be_less ? 0.1 : tolerance->second)) << what;
    }
    EXPECT_EQ(found, tolerances.size());
  });
}

using L = Layout;

INSTANTIATE_TEST_SUITE_P(
    All, ExpertMemoryTest,
    ::testing::Values(
        L{{}, "replicate"}, L{{}, "replicate", "full"}, L{{}, "replicate", "selective"},
        L{{.dp_shard = 2}}, L{{.dp_shard = 2, .ep = 2}},
        L{{.dp_shard = 2, .ep = 2}, "full_shard", "full"},
        L{{.dp_shard = 2, .ep = 2}, "full_shard", "selective"},
        L{{.dp_shard = 2, .ep = 2}, "shard_optimizer", "none", 1, 2},
        L{{.dp_replicate = 2, .ep = 2}, "replicate"},
        L{{.dp_replicate = 2, .ep = 2}, "replicate", "selective"}, L{{.dp_shard = 4, .ep = 2}},
        L{{.dp_shard = 4, .ep = 4}, "shard_gradients"}, L{{.dp_shard = 2, .ep = 2, .tp = 2}},
        L{{.dp_shard = 2, .ep = 2, .tp = 2}, "full_shard", "selective"},
        L{{.tp = 2, .etp = 1}, "replicate"},
        L{{.ep = 2, .tp = 2, .etp = 1}, "replicate", "selective"},
        L{{.dp_shard = 2, .ep = 4, .tp = 2, .etp = 1}}, L{{.pp = 2, .dp_shard = 2, .ep = 2}}));

}  // namespace
}  // namespace tessera::parity
