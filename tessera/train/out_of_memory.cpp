#include "tessera/train/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/units.h"
#include "tessera/memory/device_memory.h"

namespace tessera::train {
namespace {

std::string out_of_memory_text(const Run& run, int64_t step) {
  const auto held = run.parallel.memory();
  const auto all = memory::device_memory(run.device);
  const int64_t states = run.optimizer.state_bytes();
  const int64_t kept = held.parameters + held.gathered + held.gradients + states;
  return fmt::format(
      "step {}: out of memory on GPU {}: at most {} in tensors, of them parameters {}, gathered "
      "{}, gradients {}, "
      "optimizer {}, activations and what operators need {}; {}",
      step, static_cast<int>(run.device.index()), format_bytes(all.peak_tensors),
      format_bytes(held.parameters), format_bytes(held.gathered), format_bytes(held.gradients),
      format_bytes(states), format_bytes(std::max<int64_t>(0, all.peak_tensors - kept)),
      saving_advice(run.config, run.rank_plan().part.micro_batch));
}

}  // namespace

std::string saving_advice(const config::RunConfig& config, int64_t micro_batch) {
  const auto& precision = config.precision;
  if (micro_batch > 1) {
    return fmt::format("set train.micro_batch to {} (now {})", micro_batch / 2, micro_batch);
  }
  if (config.memory.checkpointing != memory::CheckpointMode::full) {
    return "set memory.checkpointing to full";
  }
  if (precision.compute == FloatType::fp32) return "set precision.compute to bf16";
  if (precision.parameters == FloatType::fp32 &&
      config.optimizer.type == optim::OptimizerType::adamw) {
    return "set precision.parameters, optimizer_states and reduce to bf16";
  }
  if (config.parallel.offload_optimizer == parallel::OffloadOptimizer::none &&
      config.parallel.offload_params == parallel::OffloadParams::none) {
    return "set parallel.offload_optimizer to true";
  }
  if (config.memory.offload_activations == memory::OffloadActivations::none) {
    return "set memory.offload_activations to true";
  }
  return "use more GPUs with parallel.placement full_shard, or a smaller data.seq_len";
}

void within_memory(const Run& run, int64_t step, c10::function_ref<void()> body) {
  try {
    body();
  } catch (const c10::OutOfMemoryError&) {
    user_error("{}", out_of_memory_text(run, step));
  }
}

}  // namespace tessera::train
