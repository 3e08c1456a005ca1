#include "tessera/train/engine_options.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/device.h"
#include "tessera/memory/checkpoint.h"

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
  static const std::map<std::string, comm::BackendChoice> kBackends{
      {"auto", comm::BackendChoice::automatic},
      {"gloo", comm::BackendChoice::gloo},
      {"nccl", comm::BackendChoice::nccl}};
  const auto choice = comm::choose_device(kBackends.at(parallel.backend), environment.local_rank,
                                          environment.local_world_size);
  if (environment.rank == 0 && !choice.note.empty()) fmt::print("{}\n", choice.note);
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(parallel.timeout_seconds * 1000));
  const auto fitting = config::fitting_mesh(parallel, environment.world_size);
  return mesh::DeviceMesh({.pp = static_cast<int>(fitting.pp),
                           .dp_replicate = static_cast<int>(fitting.dp_replicate),
                           .dp_shard = static_cast<int>(fitting.dp_shard),
                           .tp = static_cast<int>(fitting.tp)},
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

torch::Dtype dtype_named(const std::string& name) {
  return name == "bf16" ? torch::kBFloat16 : name == "fp16" ? torch::kHalf : torch::kFloat32;
}

void checkpoint_activations(const std::vector<nn::Hookable*>& blocks, BlockEnd end,
                            const config::MemorySection& section) {
  static const std::map<std::string, memory::CheckpointMode> kModes{
      {"none", memory::CheckpointMode::none},
      {"full", memory::CheckpointMode::full},
      {"selective", memory::CheckpointMode::selective}};
  const auto mode = kModes.at(section.checkpointing);
  memory::checkpoint_blocks(
      blocks, {.mode = mode,
               .every_k = section.checkpoint_every,
               .drop_last_product =
                   mode == memory::CheckpointMode::selective && end == BlockEnd::residual_sum});
}

parallel::DataParallelOptions data_parallel_options(const config::RunConfig& config) {
  static const std::map<std::string, parallel::Placement> kPlacements{
      {"replicate", parallel::Placement::replicate},
      {"shard_optimizer", parallel::Placement::shard_optimizer},
      {"shard_gradients", parallel::Placement::shard_gradients},
      {"full_shard", parallel::Placement::full_shard}};
  static const std::map<std::string, parallel::BackwardPrefetch> kPrefetches{
      {"none", parallel::BackwardPrefetch::none},
      {"pre", parallel::BackwardPrefetch::pre},
      {"post", parallel::BackwardPrefetch::post}};
  const auto& section = config.parallel;
  const auto& precision = config.precision;
  parallel::DataParallelOptions options{
      .offload = {.offload_params = section.offload_params,
                  .offload_optimizer = section.offload_optimizer,
                  .fraction = section.offload_fraction},
      .backward_prefetch = kPrefetches.at(section.backward_prefetch),
      .forward_prefetch = section.forward_prefetch,
      .max_gathered_units = static_cast<int>(section.max_gathered_units),
      .sync_module_states = section.sync_module_states};
  options.unit.placement = kPlacements.at(section.placement);
  const auto& reshard = section.reshard_after_forward;
  if (reshard == "true" || reshard == "false") {
    options.unit.reshard_after_forward = reshard == "true";
  } else {
    options.unit.reshard_after_forward = std::stoi(reshard);
  }
  if (precision.compute != "fp32" && !precision.autocast) {
    options.unit.mixed_precision.reduce_dtype = dtype_named(precision.reduce);
    if (precision.parameters == "fp32") {
      options.unit.mixed_precision.param_dtype = dtype_named(precision.compute);
    }
  }
  if (config.optimizer.decay_norms_and_biases) {
    options.decays = [](const std::string&, const torch::Tensor&) { return true; };
  }
  return options;
}

bool reduces_each(const config::ParallelSection& parallel) {
  return parallel.placement == "shard_gradients" || parallel.placement == "full_shard";
}

}  // namespace tessera::train
