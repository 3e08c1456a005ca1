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
#include <unordered_set>
#include <utility>
#include <vector>

#include "tessera/checkpoint/held_extents.h"
#include "tessera/config/accelerate/ledger.h"
#include "tessera/config/accelerate/settings.h"
#include "tessera/config/run_config.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/mesh/mesh.h"
#include "tessera/nn/hooked.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tessera/precision/autocast.h"
#include "tessera/precision/loss_scaler.h"
#include "tessera/train/accelerator_options.h"
#include "tessera/train/save_state.h"

namespace tessera {

/// A pass over a prepared loader, while it lives.
struct LoaderPass {
  bool at_end = false;  ///< the batch in use is the last one
  int64_t remainder =
      0;  ///< at the end: rows of the last step over all ranks that are no repetition
  bool on_all_ranks = true;  ///< the batch in use: none of them lacks one in this step
  int64_t position = 0;      ///< batches taken, skipped ones included
  torch::Tensor generator;   ///< rank 0's generator, with which the sampler drew its order
};

/// One prepared loader: what of it is saved.
struct LoaderRecord {
  std::weak_ptr<LoaderPass> pass;  ///< the last that began
  struct Resumed {
    torch::Tensor generator;
    int64_t position = 0;
  };
  std::optional<Resumed> resumed;  ///< by load_state, for the next pass
};

/// One prepared optimizer.
struct OptimizerRecord {
  torch::optim::Optimizer* base = nullptr;
  std::vector<size_t> models;  ///< whose parameters it updates
  bool unscaled = false;       ///< its gradients were divided by the loss scale already
  bool skipped = false;        ///< its last step found an overflow
  bool done = false;           ///< stepped, or dropped its gradients, since the last backward
  bool stepped = false;        ///< and nobody called zero_grad() since
  bool added_up = false;       ///< a backward gave it gradients before that zero_grad()
  std::function<void(bool training)> set_training;  ///< its train() and eval(); none: it has none
};

/// What each step of a scheduler was given, if anything.
using Metrics = std::vector<std::optional<double>>;

/// The steps that a scheduler's saved `state` has beyond those that it took: so many, or with these metrics. UserError: it
/// took others.
int64_t steps_behind(int64_t taken, const nlohmann::json& state);
Metrics metrics_behind(const Metrics& taken, const nlohmann::json& state);
/// Metrics as that has them: to the last bit.
nlohmann::json state_of(const Metrics& metrics);

/// The state of a scheduler, as it is saved.
struct SchedulerRecord {
  std::function<nlohmann::json()> state;
  std::function<void(const nlohmann::json&)> load;
};

/// One prepared model.
struct ModelRecord {
  const torch::nn::Module* inner = nullptr;
  std::shared_ptr<nn::Hookable> root;
  bool wrapped = false;  // root is not the user's module: names begin with "module."
  parallel::DataParallel parallel;
  std::vector<OptimizerRecord*> optimizers;  // over parts of it
  bool has_gradients = false;                // a backward since the last update
  bool updated = false;                      // by one of them, and others are to follow
  int64_t num_forwards = 0;                  // since the last backward
  bool send_buffers = true;                  // before the next forward
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
  std::shared_ptr<ModelRecord> model_of(const torch::nn::Module& inner) const;

  /// The optimizer's parameters become this rank's parts of them, in the same groups. ValueError:
  /// parameters of no prepared model or of another optimizer, one that stepped already, a kind that
  /// cannot work on parts of parameters.
  std::shared_ptr<OptimizerRecord> add_optimizer(torch::optim::Optimizer& optimizer);
  std::shared_ptr<LoaderRecord> add_loader();
  void add_scheduler(SchedulerRecord scheduler) { schedulers_.push_back(std::move(scheduler)); }

  std::string distributed_type() const { return settings_.text("distributed_type"); }
  void free_memory();  ///< forgets all that was prepared
  void register_for_checkpointing(SchedulerRecord object) { objects_.push_back(std::move(object)); }

  // ---- a step ----

  void before_forward(ModelRecord& model);
  void after_forward(ModelRecord& model) const;
  void backward(const torch::Tensor& loss);
  void step(OptimizerRecord& optimizer, const std::function<torch::Tensor()>& closure = nullptr);
  void zero_grad(OptimizerRecord& optimizer);
  void set_training(OptimizerRecord& optimizer, bool training);
  double clip_grad_norm(const std::vector<torch::Tensor>& parameters, double max_norm,
                        double norm_type);
  void clip_grad_value(const std::vector<torch::Tensor>& parameters, double clip_value);
  bool any_skipped() const;                               ///< the last step of any optimizer
  std::unique_ptr<precision::Autocast> autocast() const;  ///< none: nullptr
  /// An argument of a model's forward as the model computes: where weights are gathered in 16 bits.
  torch::Tensor cast_input(const torch::Tensor& input) const;

  int64_t accumulation_steps() const { return accumulation_steps_; }
  void set_accumulation_steps(int64_t steps);
  void begin_micro_batch();  ///< accumulate()
  bool sync_gradients() const { return sync_gradients_; }
  void set_sync_gradients(bool sync) { sync_gradients_ = sync; }
  bool replicates() const;  ///< DDP or one process: every rank has all gradients
  /// While true, every rank updates with its own gradients (local SGD). ValueError: not DDP.
  void set_local(bool local);
  void average_parameters();  ///< of all models over the ranks. Collective
  void begin_join();          ///< from here on ranks may run out of batches
  void end_join();            ///< takes part in what other ranks do until all have. Collective
  int64_t num_steps() const { return num_steps_; }                  ///< updates
  int64_t num_micro_batches() const { return num_micro_batches_; }  ///< backwards

  // ---- loaders ----

  std::shared_ptr<LoaderPass> begin_pass();
  /// The pass that the program is in: the last that began (an evaluation inside of an epoch) of
  /// those that still live; none: nullptr.
  std::shared_ptr<LoaderPass> pass();

  /// Runs `work` with rank 0's state of the CPU's generator, so that samplers draw the same; then
  /// every other rank has its own again. Gives that state. Collective. `replay`: with this state
  /// instead; then every rank has its own again.
  torch::Tensor in_step_with_rank_0(const std::function<void()>& work,
                                    const torch::Tensor& replay = {}) const;

  /// Rank 0's `tensors` on all ranks; elsewhere they are made. Collective.
  void broadcast(std::vector<torch::Tensor*> tensors) const;

  // ---- exchange, state ----

  torch::Tensor gather(const torch::Tensor& tensor) const;
  torch::Tensor reduce(const torch::Tensor& tensor, const std::string& reduction) const;
  torch::Tensor pad(const torch::Tensor& tensor, int64_t dim, double pad_index,
                    bool pad_first) const;
  std::pair<int64_t, int64_t> share_of(int64_t count) const;  ///< [begin, end) of this rank's
  /// Names and whole values of a model's parameters and buffers, on the CPU. Collective.
  std::vector<std::pair<std::string, torch::Tensor>> state_dict(ModelRecord& model) const;
  void save_state(const std::filesystem::path& directory);
  void load_state(const std::filesystem::path& directory);
  void save_state();  ///< checkpoints that name themselves
  void load_state();

 private:
  void note_step_settings(const config::accelerate::Translation& translation);
  parallel::UnitRule unit_rule() const;
  void tell_heads(torch::nn::Module& root) const;
  /// `all_states`: of the optimizers, those not used yet included.
  std::vector<checkpoint::HeldExtent> held_state(bool all_states, bool buffers) const;
  train::SavedModel saved(size_t model) const;
  std::vector<train::SavedModel> saved(const OptimizerRecord& optimizer) const;
  nlohmann::json counts() const;  ///< collective
  void set_counts(const nlohmann::json& state);
  std::vector<std::pair<int64_t, std::filesystem::path>> named_checkpoints() const;
  nlohmann::json loaders_state() const;
  void load_loaders(const nlohmann::json& state);
  /// `updated`: by a step; else its gradients are dropped.
  void finish_step(OptimizerRecord& optimizer, bool updated);
  void adopt_parameters(OptimizerRecord& optimizer);
  void check_steps() const;  // before a backward
  void note_added_up();      // after one
  void give_local_gradients();
  void join_backward();
  void send_joined(int root);
  /// The norm over its models' gradients, not finite where one is not. Call unscale() before.
  double gradient_norm(const OptimizerRecord& optimizer) const;
  void unscale(OptimizerRecord& optimizer);
  /// This rank's parts of the gradients of `parameters`, and whether it counts them.
  std::vector<std::pair<torch::Tensor, bool>> gradients_of(
      const std::vector<torch::Tensor>& parameters) const;

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
  std::unordered_set<const void*> has_optimizer_;     // parameters
  std::vector<std::shared_ptr<ModelRecord>> models_;
  std::vector<std::shared_ptr<OptimizerRecord>> optimizers_;
  std::vector<std::shared_ptr<LoaderRecord>> loaders_;
  std::vector<SchedulerRecord> schedulers_, objects_;

  int64_t num_steps_ = 0, num_micro_batches_ = 0;
  int64_t micro_batch_ = 0;  // of the update under way
  bool sync_gradients_ = true, local_ = false, joining_ = false;
  std::vector<std::weak_ptr<LoaderPass>> passes_;  // each inside of the one before it
};

}  // namespace tessera
