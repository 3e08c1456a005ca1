#include "tessera/train/out_of_memory.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::train {
namespace {

// Each piece of advice, once followed, gives the next one.
TEST(OutOfMemory, AdvisesWhatIsNotDoneYet) {
  config::RunConfig config;
  EXPECT_EQ(saving_advice(config, 5), "set train.micro_batch to 2 (now 5)");
  EXPECT_EQ(saving_advice(config, 1), "set memory.checkpointing to full");
  config.memory.checkpointing = memory::CheckpointMode::full;
  EXPECT_EQ(saving_advice(config, 1), "set precision.compute to bf16");
  config.precision.compute = FloatType::bf16;
  EXPECT_EQ(saving_advice(config, 1),
            "set precision.parameters, optimizer_states and reduce to bf16");
  config.precision.parameters = FloatType::bf16;
  EXPECT_EQ(saving_advice(config, 1), "set parallel.offload_optimizer to true");
  config.parallel.offload_optimizer = parallel::OffloadOptimizer::host;
  EXPECT_EQ(saving_advice(config, 1), "set memory.offload_activations to true");
  config.memory.offload_activations = memory::OffloadActivations::host;
  EXPECT_NE(saving_advice(config, 1).find("more GPUs"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train
