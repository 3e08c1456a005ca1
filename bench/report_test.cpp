#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(BenchTest, EveryBaselineIsAContestant) {
  for (const auto& contestant : contestants()) {
    if (!contestant.baseline.empty()) {
      const auto& baseline = contestant_named(contestant.baseline);
      EXPECT_EQ(baseline.name, contestant.baseline);
      EXPECT_EQ(baseline.num_ranks, contestant.num_ranks) << contestant.name;
    }
  }
  EXPECT_THROW(contestant_named("fsdp3"), UserError);
}

TEST(BenchTest, ReadsThePeersSummaryAmongOtherLines) {
  const auto outcome = outcome_of_peer(
      "a warning\n"
      R"({"event": "step", "step": 1, "tokens_per_s": 1.0})"
      "\n"
      R"({"event": "summary", "tokens_per_s": 512.5, "vm_hwm_mb": [800.0, 812.5], )"
      R"("launch_to_first_step_s": 4.5, "last_loss": 3.25, "versions": {"torch": "2.11.0"}})"
      "\n");
  EXPECT_EQ(outcome.kind, Outcome::Kind::done);
  EXPECT_EQ(outcome.result.tokens_per_second, 512.5);
  EXPECT_EQ(outcome.result.peak_memory_mib, 812.5);
  EXPECT_EQ(outcome.result.first_step_seconds, 4.5);
  EXPECT_EQ(outcome.result.last_loss, 3.25);
}

TEST(BenchTest, APeerWithoutASummaryGivesNoFigures) {
  const auto refused =
      outcome_of_peer(R"({"event": "unsupported", "why": "asked for fsdp, got ddp"})");
  EXPECT_EQ(refused.kind, Outcome::Kind::unsupported);
  EXPECT_EQ(refused.why, "asked for fsdp, got ddp");
  EXPECT_EQ(outcome_of_peer("Traceback\n").kind, Outcome::Kind::failed);
}

TEST(BenchTest, TableHasMediansBesideTheBaseline) {
  const auto text =
      table({"small", "bf16"},
            {{"fsdp2",
              {{.tokens_per_second = 700, .peak_memory_mib = 2000},
               {.tokens_per_second = 900, .peak_memory_mib = 2000},
               {.tokens_per_second = 800, .peak_memory_mib = 2000}}},
             {"tessera_ddp", {{.tokens_per_second = 1000, .peak_memory_mib = 1600}}},
             {"tessera_fsdp",
              {{.tokens_per_second = 1200, .peak_memory_mib = 800, .foreign_cpu = 0.25}}}});
  EXPECT_THAT(text, HasSubstr("small bf16\n"));
  EXPECT_THAT(text, HasSubstr("1200 (1.50 x)"));
  EXPECT_THAT(text, HasSubstr("800 (0.40 x)"));
  EXPECT_THAT(text, HasSubstr("25 %"));
  EXPECT_THAT(text, HasSubstr("tessera_fsdp / tessera_ddp: 1.20 x tokens/s, 0.50 x memory"));
  EXPECT_THAT(text, Not(HasSubstr("tessera_zero1")));
  EXPECT_THAT(text, Not(HasSubstr("tessera_tp")));
}

}  // namespace
}  // namespace tessera::bench
