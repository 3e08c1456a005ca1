#include "tessera/train/out_of_memory.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::train {
namespace {

// Each piece of advice, once followed, gives the next one.
TEST(OutOfMemory, AdvisesWhatIsNotDoneYet) {
  for (const bool on_gpu : {true, false}) {
    config::RunConfig config;
    const auto advice = [&](int64_t micro_batch) {
      return saving_advice(config, micro_batch, on_gpu);
    };
    EXPECT_EQ(advice(5), "set train.micro_batch to 2 (now 5)");
    EXPECT_EQ(advice(1), "set memory.checkpointing to full");
    config.memory.checkpointing = memory::CheckpointMode::full;
    EXPECT_EQ(advice(1), "set precision.compute to bf16");
    EXPECT_EQ(layout_advice(config, on_gpu),
              "set precision.compute, parameters, optimizer_states and reduce to bf16");
    config.precision.compute = FloatType::bf16;
    EXPECT_EQ(advice(1), "set precision.parameters, optimizer_states and reduce to bf16");
    EXPECT_EQ(layout_advice(config, on_gpu), advice(1));
    config.precision.parameters = FloatType::bf16;
    if (on_gpu) {
      EXPECT_EQ(advice(1), "set parallel.offload_optimizer to true");
      EXPECT_EQ(layout_advice(config, on_gpu), advice(1));
      config.parallel.offload_optimizer = parallel::OffloadOptimizer::host;
      EXPECT_EQ(advice(1), "set memory.offload_activations to true");
      config.memory.offload_activations = memory::OffloadActivations::host;
    }
    config.parallel.placement = parallel::Placement::replicate;
    EXPECT_EQ(advice(1),
              "use more ranks with parallel.placement full_shard, or a smaller data.seq_len");
    config.parallel.placement = parallel::Placement::full_shard;
    EXPECT_EQ(layout_advice(config, on_gpu), on_gpu ? "use more GPUs" : "use more machines");
  }
}

}  // namespace
}  // namespace tessera::train
