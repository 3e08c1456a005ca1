#include "tessera/train/accelerator_core.h"

#include <algorithm>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/config/accelerate/ledger.h"
#include "tessera/train/engine_options.h"
#include "tessera/train/join_run.h"

namespace tessera {
namespace {

namespace accelerate = config::accelerate;

launch::RankEnvironment ranks() {
  return launch::rank_environment().value_or(launch::RankEnvironment{});
}

/// What follows from the ranks that are there, and what the program itself says.
void complete(accelerate::Settings& settings, const AcceleratorOptions& options,
              const launch::RankEnvironment& environment) {
  const int world_size = environment.world_size;
  const auto set = [&](const char* key, std::string value) {
    settings.set({.key = key, .value = std::move(value), .origin = "the ranks' environment"});
  };
  if (settings.find("distributed_type") == nullptr) {
    set("distributed_type", world_size > 1 ? "MULTI_CPU" : "NO");
  }
  set("num_processes", std::to_string(world_size));
  const int machines = std::max(1, world_size / environment.local_world_size);
  set("num_machines", std::to_string(machines));
  if (machines > 1) set("main_process_ip", environment.master_addr);
  if (options.mixed_precision) {
    settings.set({.key = "mixed_precision",
                  .value = *options.mixed_precision,
                  .origin = "AcceleratorOptions"});
  }
}

bool asks_for_fp8(const config::PrecisionSection& precision) {
  return precision.matmul != Matmul::as_compute || precision.has_fp8_weights() ||
         precision.has_fp8_gradients() || precision.sends_fp8() ||
         precision.optimizer_states == optim::StateType::fp8_fp16;
}

/// A process joins a run once: its Accelerators, also one after the other, have one mesh.
std::shared_ptr<const mesh::DeviceMesh> mesh_of_process(
    const config::ParallelSection& parallel, const launch::RankEnvironment& environment) {
  static std::mutex mutex;
  static std::shared_ptr<const mesh::DeviceMesh> joined;
  const std::lock_guard lock(mutex);
  const auto fitting = config::fitting_mesh(parallel, environment.world_size);
  if (joined) {
    if (fitting.dp_replicate != joined->shape().dp_replicate ||
        fitting.dp_shard != joined->shape().dp_shard) {
      user_error(
          "Accelerator: expected the placement of this program's first one (dp_replicate {}, "
          "dp_shard {}), got dp_replicate {}, dp_shard {}",
          joined->shape().dp_replicate, joined->shape().dp_shard, fitting.dp_replicate,
          fitting.dp_shard);
    }
    return joined;
  }
  train::set_threads(parallel, environment);
  joined = std::make_shared<mesh::DeviceMesh>(train::make_mesh(parallel, environment));
  return joined;
}

}  // namespace

AcceleratorCore::AcceleratorCore(const AcceleratorOptions& options, accelerate::Settings settings,
                                 std::shared_ptr<const mesh::DeviceMesh> mesh)
    : options_(options), settings_(std::move(settings)), environment_(ranks()) {
  if (mesh) environment_.world_size = environment_.local_world_size = mesh->size();
  complete(settings_, options, environment_);
  const auto translation = accelerate::translate(settings_);
  accelerate::check_ledger(translation.ledger, /*strict=*/false);
  config_ = config::load_run_config("", translation.job).config;
  note_step_settings(translation);
  if (config_.parallel.tp != 1) {
    user_error(
        "parallel.tp: the Accelerator divides no matrices, got {}; use tessera train, or "
        "tensor_parallel() of your model",
        config_.parallel.tp);
  }
  if (asks_for_fp8(config_.precision)) {
    user_error(
        "mixed_precision: expected no, fp16 or bf16, got 8-bit floats: these are of the layers and "
        "optimizers of tessera train, not of a program's own modules");
  }
  mesh_ = mesh ? std::move(mesh) : mesh_of_process(config_.parallel, environment_);
  axis_ = mesh_->axis({"dp_replicate", "dp_shard"});
  if (config_.precision.autocast) autocast_ = train::torch_dtype(config_.precision.compute);
  if (config_.precision.compute == FloatType::fp16) scaler_.emplace();
}

void AcceleratorCore::note_step_settings(const accelerate::Translation& translation) {
  for (const auto& entry : translation.job) {
    if (entry.key == "optimizer.max_grad_norm") clip_always_ = config_.optimizer.max_grad_norm;
  }
  if (translation.accumulation && translation.accumulation->value != "auto") {
    accumulation_steps_ = std::stoll(translation.accumulation->value);
  }
  set_accumulation_steps(options_.gradient_accumulation_steps.value_or(accumulation_steps_));
}

}  // namespace tessera
