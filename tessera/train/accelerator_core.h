// What an Accelerator and everything it prepared share.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/checkpoint/parts.h"
#include "tessera/config/accelerate/ledger.h"
#include "tessera/config/accelerate/settings.h"
#include "tessera/config/run_config.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/mesh/mesh.h"
#include "tessera/nn/hooked.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tessera/precision/autocast.h"
#include "tessera/precision/loss_scaler.h"
#include "tessera/train/save_state.h"

namespace tessera {

struct AcceleratorOptions {
  std::optional<std::string> mixed_precision;          ///< "no", "fp16", "bf16"; none: as launched
  std::optional<int64_t> gradient_accumulation_steps;  ///< none: as launched, else 1
  bool sync_with_loader = true;  ///< the last batch of a loader always updates
  /// How batches are divided over processes: see BatchShardOptions. Neither changes what
  /// `batch_size` means in the loader: rows per process, or with split_batches rows of all
  /// processes.
  bool split_batches = false, even_batches = true;
  /// Rank 0 alone reads, the others receive their rows: for data that only it can read.
  bool dispatch_batches = false;
  /// true: a prepared scheduler steps once for each process where the optimizer steps once, because
  /// one step took the rows of as many batches (not with split_batches): schedules written for one
  /// device keep their length in rows. false: once.
  bool step_scheduler_per_process = true;
  /// false: a prepared scheduler steps whenever it is told to.
  bool step_scheduler_with_optimizer = true;
  uint64_t seed = 0;  ///< of nn::Dropout
  /// Where init_trackers() sends what is logged: "tensorboard", "csv", "mlflow" (report/sink.h).
  std::vector<std::string> log_with = {"tensorboard"};
};

/// A pass over a prepared loader, while it lives.
struct LoaderPass {
  bool at_end = false;  ///< the batch in use is the last one
  int64_t remainder =
      0;  ///< at the end: rows of the last step over all ranks that are no repetition
};

/// One prepared optimizer.
struct OptimizerRecord {
  torch::optim::Optimizer* base = nullptr;
  std::vector<size_t> models;  ///< whose parameters it updates
  bool unscaled = false;       ///< its gradients were divided by the loss scale already
  bool skipped = false;        ///< its last step found an overflow
};

/// The steps that a scheduler of LibTorch's has counted.
struct SchedulerRecord {
  std::function<int64_t()> count;
  std::function<void(int64_t)> set_count;
};

class AcceleratorCore {
 public:
  AcceleratorCore(const AcceleratorOptions& options, config::accelerate::Settings settings,
                  std::shared_ptr<const mesh::DeviceMesh> mesh);

  const AcceleratorOptions& options() const { return options_; }
  const config::RunConfig& config() const { return config_; }
  const launch::RankEnvironment& environment() const { return environment_; }
  const mesh::DeviceMesh& mesh() const { return *mesh_; }
  const mesh::Axis& axis() const { return axis_; }  ///< all processes
  const config::accelerate::Settings& settings() const { return settings_; }

  // ---- preparing ----

  /// `inner`: the user's module; `root`: itself, or what wraps it. Collective. Does nothing for one
  /// that is prepared already.
  void add_model(torch::nn::Module& inner, const std::shared_ptr<nn::Hookable>& root);
  const std::shared_ptr<nn::Hookable>& root_of(const torch::nn::Module& inner) const;

  /// The optimizer's parameters become this rank's parts of them, in the same groups. ValueError:
  /// parameters of no prepared model, a model that has an optimizer already.
  OptimizerRecord& add_optimizer(torch::optim::Optimizer& optimizer);
  void add_scheduler(SchedulerRecord scheduler) { schedulers_.push_back(std::move(scheduler)); }

  // ---- a step ----

  void backward(const torch::Tensor& loss);
  void step(OptimizerRecord& optimizer);
  void zero_grad(OptimizerRecord& optimizer);
  double clip_grad_norm(double max_norm);
  bool any_skipped() const;                               ///< the last step of any optimizer
  std::unique_ptr<precision::Autocast> autocast() const;  ///< none: nullptr
  /// An argument of a model's forward as the model computes: where weights are gathered in 16 bits.
  torch::Tensor cast_input(const torch::Tensor& input) const;

  int64_t accumulation_steps() const { return accumulation_steps_; }
  void begin_micro_batch();  ///< accumulate()
  bool sync_gradients() const { return sync_gradients_; }
  void set_sync_gradients(bool sync) { sync_gradients_ = sync; }
  int64_t num_steps() const { return num_steps_; }                  ///< updates
  int64_t num_micro_batches() const { return num_micro_batches_; }  ///< backwards

  // ---- loaders ----

  std::shared_ptr<LoaderPass> begin_pass();
  /// The pass that the program is in: the last that began (an evaluation inside of an epoch) of
  /// those that still live; none: nullptr.
  std::shared_ptr<LoaderPass> pass();

  /// Runs `work` with rank 0's state of the CPU's generator, so that samplers draw the same; then
  /// every other rank has its own again. Collective.
  void in_step_with_rank_0(const std::function<void()>& work) const;

  /// Rank 0's `tensors` on all ranks; elsewhere they are made. Collective.
  void broadcast(std::vector<torch::Tensor*> tensors) const;

  // ---- exchange, state ----

  torch::Tensor gather(const torch::Tensor& tensor) const;
  std::pair<int64_t, int64_t> share_of(int64_t count) const;  ///< [begin, end) of this rank's
  void save_state(const std::filesystem::path& directory);
  void load_state(const std::filesystem::path& directory);

 private:
  struct Model {
    const torch::nn::Module* inner = nullptr;
    std::shared_ptr<nn::Hookable> root;
    bool wrapped = false;  // root is not the user's module: names begin with "module."
    parallel::DataParallel parallel;
    OptimizerRecord* optimizer = nullptr;
    bool has_gradients = false;  // a backward since the last update
  };

  void note_step_settings(const config::accelerate::Translation& translation);
  parallel::UnitRule unit_rule() const;
  /// `all_states`: of the optimizers, those not used yet included.
  std::vector<checkpoint::Part> held_state(bool all_states, bool buffers) const;
  train::SavedModel saved(size_t model) const;
  std::vector<train::SavedModel> saved(const OptimizerRecord& optimizer) const;
  nlohmann::json counts() const;  ///< collective
  void set_counts(const nlohmann::json& state);
  void finish_step(const OptimizerRecord& optimizer);
  /// The norm over all models' gradients, not finite where one is not. Call unscale() before.
  double gradient_norm() const;
  void scale_gradients(const OptimizerRecord& optimizer, double factor);
  void unscale(OptimizerRecord& optimizer);

  AcceleratorOptions options_;
  config::accelerate::Settings settings_;
  config::RunConfig config_;
  double clip_always_ = 0;  // DeepSpeed's gradient_clipping; 0: none
  launch::RankEnvironment environment_;
  std::shared_ptr<const mesh::DeviceMesh> mesh_;
  mesh::Axis axis_;
  std::optional<torch::Dtype> autocast_;
  std::optional<precision::LossScaler> scaler_;
  int64_t accumulation_steps_ = 1;

  std::unordered_map<const void*, size_t> model_of_;  // by parameter
  std::vector<Model> models_;
  std::vector<std::unique_ptr<OptimizerRecord>> optimizers_;
  std::vector<SchedulerRecord> schedulers_;

  int64_t num_steps_ = 0, num_micro_batches_ = 0;
  int64_t micro_batch_ = 0;  // of the update under way
  bool sync_gradients_ = true;
  std::vector<std::weak_ptr<LoaderPass>> passes_;  // each inside of the one before it
};

}  // namespace tessera
