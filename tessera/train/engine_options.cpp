#include "tessera/train/engine_options.h"

#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/config/needs.h"
#include "tessera/memory/activation_checkpointing.h"
#include "tessera/models/spec.h"

namespace tessera::train {
namespace fs = std::filesystem;

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

torch::Dtype state_dtype(optim::StateType type) {
  return type == optim::StateType::bf16 ? torch::kBFloat16 : torch::kFloat32;
}

BlockEnd block_end(const models::ModelShape& shape) {
  return models::ends_with_product(shape) ? BlockEnd::residual_sum : BlockEnd::any;
}

BlockEnd end_of_blocks(const models::ModelShape& shape, const models::AdapterSpec& adapter) {
  return adapter.type == models::AdapterType::dora ? BlockEnd::any : block_end(shape);
}

void checkpoint_activations(const std::vector<nn::Hookable*>& blocks, BlockEnd end,
                            const config::MemorySection& section,
                            std::shared_ptr<memory::ActivationStore> offload) {
  const auto mode = section.checkpointing;
  memory::checkpoint_blocks(blocks, {.mode = mode,
                                     .every_k = section.checkpoint_every,
                                     .drop_last_product = mode != memory::CheckpointMode::none &&
                                                          end == BlockEnd::residual_sum,
                                     .offload = std::move(offload)});
}

std::shared_ptr<offload::StoredStack> checkpoint_activations(
    const std::vector<nn::Hookable*>& blocks, BlockEnd end, const config::RunConfig& config,
    const mesh::DeviceMesh& mesh) {
  std::shared_ptr<offload::StoredStack> stack;
  std::shared_ptr<memory::ActivationStore> store;
  switch (config.memory.offload_activations) {
    case memory::OffloadActivations::none:
      break;
    case memory::OffloadActivations::host:
      if (mesh.device().is_cpu()) {
        user_error(
            "memory.offload_activations: true: expected a GPU, whose activations go to the host's "
            "memory, got a CPU; set nvme (drives), or false");
      }
      store = memory::pinned_store();
      break;
    case memory::OffloadActivations::nvme:
      stack = std::make_shared<offload::StoredStack>(
          part_of_storage(config, mesh.all_of_training().rank()));
      store = memory::drive_store(stack);
  }
  checkpoint_activations(blocks, end, config.memory, std::move(store));
  return stack;
}

std::shared_ptr<offload::StoredStack> checkpoint_activations(models::LanguageModel& model,
                                                             const models::AdapterSpec& adapter,
                                                             const config::RunConfig& config,
                                                             const mesh::DeviceMesh& mesh) {
  return checkpoint_activations(model.blocks(), end_of_blocks(model.shape(), adapter), config,
                                mesh);
}

parallel::DataParallelOptions data_parallel_options(const config::RunConfig& config) {
  using parallel::OffloadOptimizer;
  const auto& section = config.parallel;
  const auto& precision = config.precision;
  parallel::DataParallelOptions options{
      .offload = {.offload_params = section.offload_params == parallel::OffloadParams::host,
                  .offload_optimizer = section.offload_optimizer == OffloadOptimizer::host,
                  .on_drives = config::on_drives(config),
                  .gradients_on_drives = config::gradients_on_drives(config),
                  .fraction = section.offload_fraction},
      .backward_prefetch = section.backward_prefetch,
      .forward_prefetch = section.forward_prefetch,
      .max_gathered_units = static_cast<int>(section.max_gathered_units),
      .update_in_backward = config.optimizer.in_backward,
      .fp8_gradients = precision.has_fp8_gradients(),
      .fp8_communication = precision.sends_fp8(),
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

parallel::UnitRuleKind unit_rule_kind(parallel::Units units) {
  switch (units) {
    case parallel::Units::block:
      return parallel::UnitRuleKind::given;
    case parallel::Units::size:
      return parallel::UnitRuleKind::by_size;
    case parallel::Units::name:
      return parallel::UnitRuleKind::by_name;
    case parallel::Units::model:
      return parallel::UnitRuleKind::whole_model;
  }
  __builtin_unreachable();
}

optim::LearningRateOptions learning_rate_options(const config::RunConfig& config) {
  return {.type = config.schedule.type,
          .learning_rate = config.optimizer.learning_rate,
          .min_ratio = config.schedule.min_ratio,
          .warmup_steps = config.schedule.warmup_steps,
          .decay_steps = config.schedule.decay_steps,
          .total_steps = 0};  // set_length
}

namespace {

/// UserError if a folder is there twice, or cannot be on the drive that was meant, as nothing is where it would be.
void check_drives(const std::vector<fs::path>& paths) {
  std::set<fs::path> seen;
  for (const auto& path : paths) {
    auto place = fs::weakly_canonical(fs::absolute(path));
    if (!place.has_filename()) place = place.parent_path();
    if (!seen.insert(place).second)
      user_error("offload.paths: {}: is there twice; name a folder on each drive", path.string());
    if (!fs::exists(place.parent_path())) {
      user_error(
          "offload.paths: {}: expected a folder, or a name in one, found none; is its drive "
          "mounted?",
          path.string());
    }
  }
}

}  // namespace

offload::StorageOptions storage_options(const config::RunConfig& config, int rank) {
  constexpr int64_t kKib = 1 << 10, kMib = 1 << 20;
  const auto& section = config.offload;
  offload::StorageOptions options{.space = {.paths = {section.paths.begin(), section.paths.end()},
                                            .block_bytes = section.block_size * kKib,
                                            .queue_depth = static_cast<int>(section.queue_depth),
                                            .any_file_system = section.any_file_system,
                                            .timeout_seconds = section.timeout_seconds,
                                            .rank = rank},
                                  .buffers = section.buffers,
                                  .host_memory = section.host_memory * kMib};
  auto& paths = options.space.paths;
  if (paths.empty()) {
    paths = {fs::path(config.train.run_dir) / "offload"};
  } else {
    check_drives(paths);
  }
  return options;
}

offload::StorageOptions part_of_storage(const config::RunConfig& config, int rank) {
  auto options = storage_options(config, rank);
  options.host_memory = config::part_of_host_memory(config);
  return options;
}

offload::StorageOptions storage_beside_activations(const config::RunConfig& config, int rank) {
  auto options = storage_options(config, rank);
  if (config::activations_on_drives(config))
    options.host_memory -= config::part_of_host_memory(config);
  return options;
}

}  // namespace tessera::train
