#include "tessera/train/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/units.h"
#include "tessera/comm/device.h"
#include "tessera/memory/device_memory.h"

namespace tessera::train {
namespace {

/// "memory on GPU 0: at most 70.2 GiB in tensors".
std::string held_on(c10::Device device) {
  const auto where = device.is_cuda()
                         ? fmt::format("memory on GPU {}", static_cast<int>(device.index()))
                         : "host memory";
  return fmt::format("{}: at most {} in tensors", where,
                     format_bytes(memory::device_memory(device).peak_tensors));
}

std::string out_of_memory_text(const Run& run, int64_t step) {
  const auto held = run.parallel.memory();
  const int64_t states = run.optimizer.state_bytes();
  const int64_t kept = held.parameters + held.gathered + held.gradients + states;
  const int64_t others = memory::device_memory(run.device).peak_tensors - kept;
  return fmt::format(
      "step {}: out of {}, of them parameters {}, gathered {}, gradients {}, optimizer {}, "
      "activations and what operators need {}; {}",
      step, held_on(run.device), format_bytes(held.parameters), format_bytes(held.gathered),
      format_bytes(held.gradients), format_bytes(states),
      format_bytes(std::max<int64_t>(0, others)),
      saving_advice(run.config, run.rank_plan().part.micro_batch, run.device.is_cuda()));
}

}  // namespace

std::string layout_advice(const config::RunConfig& config, bool on_gpu) {
  const auto& parallel = config.parallel;
  if (config.precision.parameters == FloatType::fp32 &&
      config.optimizer.type == optim::OptimizerType::adamw) {
    return fmt::format("set precision.{}parameters, optimizer_states and reduce to bf16",
                       config.precision.compute == FloatType::fp32 ? "compute, " : "");
  }
  if (on_gpu && parallel.offload_optimizer == parallel::OffloadOptimizer::none &&
      parallel.offload_params == parallel::OffloadParams::none) {
    return "set parallel.offload_optimizer to true";
  }
  if (parallel.placement != parallel::Placement::full_shard) {
    return "use more ranks with parallel.placement full_shard";
  }
  return fmt::format("use more {}", on_gpu ? "GPUs" : "machines");
}

std::string saving_advice(const config::RunConfig& config, int64_t micro_batch, bool on_gpu) {
  if (micro_batch > 1) {
    return fmt::format("set train.micro_batch to {} (now {})", micro_batch / 2, micro_batch);
  }
  if (config.memory.checkpointing != memory::CheckpointMode::full) {
    return "set memory.checkpointing to full";
  }
  if (config.precision.compute == FloatType::fp32) return "set precision.compute to bf16";
  auto of_layout = layout_advice(config, on_gpu);
  if (of_layout.starts_with("set")) return of_layout;
  if (on_gpu && config.memory.offload_activations == memory::OffloadActivations::none) {
    return "set memory.offload_activations to true";
  }
  return of_layout + ", or a smaller data.seq_len";
}

void within_memory(const config::RunConfig& config, const launch::RankEnvironment& environment,
                   c10::function_ref<void()> body) {
  try {
    body();
  } catch (const c10::OutOfMemoryError&) {
    const auto device = comm::choose_device(config.parallel.backend, environment.local_rank,
                                            environment.local_world_size)
                            .device;
    user_error("out of {}; {}", held_on(device), layout_advice(config, device.is_cuda()));
  }
}

void within_memory(const Run& run, int64_t step, c10::function_ref<void()> body) {
  try {
    body();
  } catch (const c10::OutOfMemoryError&) {
    user_error("{}", out_of_memory_text(run, step));
  }
}

}  // namespace tessera::train
