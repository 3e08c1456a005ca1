#include "tessera/train/engine_options.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/device.h"
#include "tessera/memory/checkpoint.h"
#include "tessera/models/spec.h"

namespace tessera::train {

void set_threads(const config::ParallelSection& parallel,
                 const launch::RankEnvironment& environment) {
  int64_t threads = parallel.threads_per_rank;
  if (threads == 0 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    threads =
        std::max<int64_t>(1, std::thread::hardware_concurrency() / environment.local_world_size);
  }
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
}

mesh::DeviceMesh make_mesh(const config::ParallelSection& parallel,
                           const launch::RankEnvironment& environment) {
  const auto choice =
      comm::choose_device(parallel.backend, environment.local_rank, environment.local_world_size);
  if (environment.rank == 0 && !choice.note.empty()) fmt::print("{}\n", choice.note);
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(parallel.timeout_seconds * 1000));
  return mesh::DeviceMesh(config::fitting_mesh(parallel, environment.world_size),
                          {.rank = environment.rank,
                           .world_size = environment.world_size,
                           .master_addr = environment.master_addr,
                           .master_port = environment.master_port,
                           .listen_fd = environment.listen_fd,
                           .served = environment.agent_store,
                           .one_machine = environment.local_world_size == environment.world_size,
                           .interface = parallel.interface,
                           .secret = environment.secret,
                           .timeout = timeout},
                          /*transport=*/{}, choice.device);
}

torch::Dtype torch_dtype(FloatType type) {
  switch (type) {
    case FloatType::fp32:
      return torch::kFloat32;
    case FloatType::bf16:
      return torch::kBFloat16;
    case FloatType::fp16:
      return torch::kHalf;
  }
  __builtin_unreachable();
}

BlockEnd block_end(const models::ModelShape& shape) {
  return models::spec_of(shape.family).norms_results ? BlockEnd::any : BlockEnd::residual_sum;
}

void checkpoint_activations(const std::vector<nn::Hookable*>& blocks, BlockEnd end,
                            const config::MemorySection& section) {
  const auto mode = section.checkpointing;
  memory::checkpoint_blocks(
      blocks, {.mode = mode,
               .every_k = section.checkpoint_every,
               .drop_last_product =
                   mode == memory::CheckpointMode::selective && end == BlockEnd::residual_sum});
}

parallel::DataParallelOptions data_parallel_options(const config::RunConfig& config) {
  const auto& section = config.parallel;
  const auto& precision = config.precision;
  parallel::DataParallelOptions options{
      .offload = {.offload_params = section.offload_params,
                  .offload_optimizer = section.offload_optimizer,
                  .fraction = section.offload_fraction},
      .backward_prefetch = section.backward_prefetch,
      .forward_prefetch = section.forward_prefetch,
      .max_gathered_units = static_cast<int>(section.max_gathered_units),
      .sync_module_states = section.sync_module_states};
  options.unit.placement = section.placement;
  options.unit.reshard_after_forward = section.reshard_after_forward;
  if (precision.computes_in_half()) {
    options.unit.mixed_precision.reduce_dtype = torch_dtype(precision.reduce);
    if (precision.parameters == FloatType::fp32) {
      options.unit.mixed_precision.param_dtype = torch_dtype(precision.compute);
    }
  }
  if (config.optimizer.decay_norms_and_biases) {
    options.decays = [](const std::string&, const torch::Tensor&) { return true; };
  }
  return options;
}

}  // namespace tessera::train
