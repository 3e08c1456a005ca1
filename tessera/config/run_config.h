// What a user may ask of `tessera train`; `plan/` gives it meaning. Every field here has one entry in the field list (fields.cpp): parsing, validation, help
// and docs derive from it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/base/aux_loss.h"
#include "tessera/base/axes.h"
#include "tessera/base/choices.h"
#include "tessera/base/expert_capacity.h"
#include "tessera/base/expert_sampling.h"
#include "tessera/base/fp8.h"
#include "tessera/base/offload.h"
#include "tessera/base/optimizer_states.h"
#include "tessera/base/weight_format.h"
#include "tessera/models/adapter.h"
#include "tessera/models/shape.h"

namespace tessera::config {

struct ModelSection {
  std::string preset =
      "tiny";        ///< a name of models::model_preset_names(); ignored when `path` is set
  std::string path;  ///< folder with config.json and (unless init is "random") *.safetensors
  std::string type = "auto";  ///< model_type that config.json (or the preset) must have; auto: any
  /// random: weights from (seed, name, position); pretrained: read from path
  models::Init init = models::Init::random;
  WeightFormat weights = WeightFormat::as_stored;  ///< of the linear layers in blocks
  int64_t weights_block = 64;                      ///< elements that share an absmax, of 4 bits
  int64_t seed = 1234;                             ///< of the initial weights
  double init_std = 0.02;
  std::optional<int64_t> vocab_size;  ///< override of the preset; likewise the next ones
  std::optional<int64_t> num_layers;
  std::optional<int64_t> dim, ffn_dim, num_heads, num_kv_heads;
  std::optional<bool> tie_embeddings;
  double dropout = 0;  ///< gpt2: probability, of the embeddings and of each block's two results

  bool operator==(const ModelSection&) const = default;
};

struct DataSection {
  std::vector<std::string> train;       ///< files or folders
  std::vector<double> weights;          ///< of the entries of train: shares of rows; empty: joined
  std::vector<std::string> validation;  ///< files or folders; empty: `validation_fraction` of train
  std::vector<std::string> choices;     ///< questions with choices that each validation asks
  double validation_fraction = 0.01;    ///< share of train that is held out, in stretches
  data::DataFormat format = data::DataFormat::automatic;
  data::TokenDtype token_dtype = data::TokenDtype::automatic;
  std::vector<std::string> extensions;  ///< of files taken from folders as text; empty: all
  std::string tokenizer;  ///< of records: a model's folder or a tokenizer's file; empty: model.path
  std::string chat_template;  ///< a file, or a name of the model's; empty: its default
  data::RowShape shape = data::RowShape::automatic;
  data::Learn learn = data::Learn::assistant;
  data::TooLong too_long = data::TooLong::cut;
  bool packing = true;  ///< several documents in a row
  bool skip_bad_lines = false;
  int64_t max_documents = 0;  ///< 0: all
  int64_t seq_len = 256;
  bool document_mask = false;           ///< of token files and text: a document sees itself alone
  std::optional<int64_t> document_end;  ///< the token that ends one; none: byte 0 of text
  bool shuffle = true;
  int64_t seed = 0;  ///< of the order of samples

  bool operator==(const DataSection&) const = default;
};

struct AdapterSection : models::AdapterSpec {
  std::string path;  ///< a stored adapter from which training goes on; its settings are the spec
  std::vector<std::string> base;  ///< stored adapters that are a frozen part of the base
  models::ExpertFormat expert_format = models::ExpertFormat::fused;  ///< as PEFT's files get them
  double lr_ratio = 1;  ///< learning rate of B / that of A (LoRA+; Hayou et al., ICML 2024)

  bool operator==(const AdapterSection&) const = default;
};

struct PreferenceSection {
  train::PreferenceLoss loss = train::PreferenceLoss::none;
  double beta = 0.1;
  double label_smoothing = 0;  ///< sigmoid

  bool operator==(const PreferenceSection&) const = default;
};

struct OptimizerSection {
  optim::OptimizerType type = optim::OptimizerType::adamw;
  double learning_rate = 3e-4;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double momentum = 0.0;  ///< sgd
  double muon_momentum = 0.95;
  bool muon_nesterov = true;
  int64_t muon_steps = 5;  ///< of Newton and Schulz's iteration
  optim::MuonScale muon_scale = optim::MuonScale::match_rms_adamw;
  double weight_decay = 0.1;
  bool decay_norms_and_biases = false;  ///< true: weight decay on every parameter
  double max_grad_norm = 1.0;           ///< 0: no clipping
  bool in_backward = false;  ///< each unit is updated once its gradient is reduced, which is freed

  bool operator==(const OptimizerSection&) const = default;
};

struct ScheduleSection {
  optim::LearningRateSchedule type = optim::LearningRateSchedule::cosine;
  int64_t warmup_steps = 0;
  double min_ratio = 0.1;   ///< final learning rate / peak
  int64_t decay_steps = 0;  ///< wsd: length of the last phase; 0: a fifth of all steps

  bool operator==(const ScheduleSection&) const = default;
};

struct ParallelSection {
  int64_t num_ranks =
      1;  ///< processes this machine starts; -1: one per GPU, or per two cores on CPU
  parallel::Placement placement = parallel::Placement::replicate;
  /// Ranks that each hold the whole model, and ranks that share one; -1: all that are left, to
  /// dp_replicate if the placement is replicate, else to dp_shard.
  int64_t dp_replicate = -1, dp_shard = -1;
  int64_t tp = 1;                 ///< ranks that divide each matrix; -1: all that are left
  bool sequence_parallel = true;  ///< tp above 1: between matrices, ranks divide the positions
  int64_t pp = 1;                 ///< ranks that divide the layers; -1: all that are left
  int64_t ep = 1;  ///< ranks that share out the experts: neighbours among the data ranks
  std::optional<int64_t> etp;  ///< ranks that divide each expert's matrices; none: those of tp
  std::string pipeline_schedule = "1F1B";  ///< a schedule's name, or a .csv file with its table
  int64_t stages_per_rank = 0;             ///< 0: what the schedule needs at least
  std::vector<int64_t> stage_layers;       ///< of each stage; empty: as stage_balance says
  parallel::StageBalance stage_balance = parallel::StageBalance::cost;
  parallel::Units units = parallel::Units::block;
  int64_t min_num_params = 1'000'000;      ///< units: size
  std::vector<std::string> unit_patterns;  ///< units: name
  parallel::ReshardAfterForward reshard_after_forward = true;
  parallel::BackwardPrefetch backward_prefetch = parallel::BackwardPrefetch::pre;
  bool forward_prefetch = true;
  int64_t max_gathered_units = 3;
  parallel::OffloadParams offload_params = parallel::OffloadParams::none;
  parallel::OffloadOptimizer offload_optimizer = parallel::OffloadOptimizer::none;
  parallel::OffloadGradients offload_gradients = parallel::OffloadGradients::none;
  double offload_fraction = 1;
  bool sync_module_states = false;
  comm::BackendChoice backend = comm::BackendChoice::automatic;
  std::string interface;         ///< of the network, over several machines; empty: by the way
  double timeout_seconds = 600;  ///< deadline of every collective
  int64_t threads_per_rank = 0;  ///< 0: OMP_NUM_THREADS, or cores / ranks

  bool operator==(const ParallelSection&) const = default;
};

/// How what is kept on drives comes and goes.
struct OffloadSection {
  std::vector<std::string> paths;  ///< folders, one on each drive; empty: run_dir/offload
  int64_t buffers = 32;            ///< parts in memory at a time
  int64_t host_memory = 256;       ///< MiB of all of them, on each rank
  int64_t block_size = 1024;       ///< KiB of a read or write
  int64_t queue_depth = 32;        ///< of them at a time
  bool any_file_system = false;    ///< in memory or over a network, too
  double timeout_seconds = 600;    ///< deadline of a read or write

  bool operator==(const OffloadSection&) const = default;
};

struct PrecisionSection {
  PrecisionPreset preset = PrecisionPreset::none;
  FloatType compute = FloatType::fp32;
  bool autocast = false;  ///< false: weights are gathered in `compute`; true: cast per use
  FloatType reduce = FloatType::fp32;      ///< gradients
  FloatType parameters = FloatType::fp32;  ///< what the optimizer updates
  optim::StateType optimizer_states = optim::StateType::fp32;
  bool stochastic_rounding = false;
  WeightStorage weights = WeightStorage::as_compute;
  GradientStorage gradients = GradientStorage::as_reduce;
  GradientStorage communication = GradientStorage::as_reduce;
  Matmul matmul = Matmul::as_compute;  ///< of the linear layers in blocks
  std::vector<std::string> fp8_keep;   ///< layers that stay in `compute`: patterns, or first_last
  bool fp8_pad = false;                ///< sizes that are no multiple of 16 are padded to one
  Fp8Format fp8_format = Fp8Format::hybrid;
  int64_t fp8_amax_history = 1024;  ///< fp8_delayed: steps; likewise the next ones
  AmaxOf fp8_amax = AmaxOf::max;
  int64_t fp8_margin = 0;
  int64_t fp8_interval = 1;
  Fp8Emulate fp8_emulate = Fp8Emulate::automatic;

  /// The recipe as it is emulated; on a device that has matrix units for it, the caller says so (plan/fp8_units.h).
  Fp8Recipe fp8_recipe() const {
    return {.matmul = matmul,
            .format = fp8_format,
            .weights_are_fp8 = has_fp8_weights(),
            .history = fp8_amax_history,
            .amax = fp8_amax,
            .margin = fp8_margin,
            .interval = fp8_interval};
  }
  bool has_fp8_weights() const { return weights == WeightStorage::fp8; }
  bool has_fp8_gradients() const { return gradients == GradientStorage::fp8; }
  bool sends_fp8() const { return communication == GradientStorage::fp8; }
  /// Weights are gathered, or kept, in `compute` instead of being cast at each use.
  bool computes_in_half() const { return compute != FloatType::fp32 && !autocast; }

  bool operator==(const PrecisionSection&) const = default;
};

struct MoeSection {
  train::AuxLoss aux_loss = train::AuxLoss::none;
  double aux_coefficient = 0.01;
  double z_coefficient = 0;        ///< of the router's z-loss
  double selection_bias_rate = 0;  ///< per step; 0: biases stay as they are
  bool force_balance = false;      ///< for benchmarks: routers are not asked
  /// How many tokens of a row an expert takes, as a multiple of its mean share (nn::ExpertCapacity); none: all.
  std::optional<double> capacity_factor = {}, eval_capacity_factor = {};
  int64_t min_capacity = 4;
  nn::DropPolicy drop_policy = nn::DropPolicy::probs;
  double input_jitter = 0;  ///< of what enters routers
  nn::ExpertSampling sampling = nn::ExpertSampling::none;
  int64_t overlap_degree = 1;  ///< parallel::Overlap's

  bool operator==(const MoeSection&) const = default;
};

struct MemorySection {
  memory::CheckpointMode checkpointing = memory::CheckpointMode::none;  ///< of activations
  int64_t checkpoint_every = 1;                                         ///< blocks
  memory::OffloadActivations offload_activations = memory::OffloadActivations::none;

  bool operator==(const MemorySection&) const = default;
};

struct CheckpointSection {
  std::string dir;           ///< empty: run_dir/checkpoints
  int64_t every = 0;         ///< steps; 0: none along the way
  double every_minutes = 0;  ///< likewise, by the clock
  bool at_end = true;
  bool async = true;  ///< training goes on while a copy is written
  checkpoint::Verify verify = checkpoint::Verify::full;
  int64_t keep_last = 0;        ///< 0: all
  int64_t keep_every = 0;       ///< and those of steps that it divides
  int64_t keep_best = 0;        ///< and those with the lowest validation loss
  std::string resume = "none";  ///< none, auto (the newest that is usable), or a folder
  bool strict = true;           ///< false: tensors may be missing or too many
  bool overwrite = false;       ///< remove those of an earlier run, or of later steps

  bool saves() const { return every > 0 || every_minutes > 0 || at_end; }

  bool operator==(const CheckpointSection&) const = default;
};

struct TrainSection {
  int64_t steps = 100;
  double epochs = 0;         ///< above 0: passes over the rows, in place of steps
  int64_t global_batch = 8;  ///< sequences in one optimizer step, over all ranks
  int64_t micro_batch = 0;   ///< sequences in one forward of one rank; 0: all of the rank's share
                             ///< (pp above 1: one)
  std::string run_dir = "runs/default";
  int64_t validate_every = 0;  ///< steps; 0: only at the end
  bool validate_on_start = false;
  int64_t validation_batches = 8;
  int64_t early_stopping_patience = 0;  ///< validations without a better loss; 0: never ends early
  double early_stopping_threshold = 0;  ///< by how much a better loss is lower
  int64_t sample_tokens = 200;          ///< length of the text generated at the end; 0: none
  std::string sample_prompt = "#include <";
  int64_t sample_answers = 0;  ///< held-out conversations that are answered before and after
  bool report_unused_parameters = false;
  train::Nonfinite nonfinite = train::Nonfinite::stop;

  bool operator==(const TrainSection&) const = default;
};

struct LoggingSection {
  int64_t every = 1;  ///< steps between lines
  bool tensorboard = true;
  std::vector<std::string> report_to;  ///< further places: csv, mlflow
  bool svg = true;
  report::ProgressMode progress = report::ProgressMode::automatic;
  int64_t profile_step = 0;  ///< of which a trace is written; 0: of none

  bool operator==(const LoggingSection&) const = default;
};

struct RunConfig {
  ModelSection model;
  AdapterSection adapter;
  DataSection data;
  PreferenceSection preference;
  OptimizerSection optimizer;
  ScheduleSection schedule;
  ParallelSection parallel;
  OffloadSection offload;
  PrecisionSection precision;
  MoeSection moe;
  MemorySection memory;
  CheckpointSection checkpoint;
  TrainSection train;
  LoggingSection logging;

  bool operator==(const RunConfig&) const = default;
};

/// What is wrong with a key's value.
struct KeyProblem {
  std::string key, message;
};
/// Ranks along the axes of a run of `num_ranks`.
std::variant<mesh::MeshShape, KeyProblem> mesh_shape(const ParallelSection& parallel,
                                                     int64_t num_ranks);

/// The same, where what is wrong is a UserError.
mesh::MeshShape fitting_mesh(const ParallelSection& parallel, int64_t num_ranks);

/// Portions in which a rank's share of the global batch goes through the model.
int64_t num_micro_batches(const RunConfig& config, const mesh::MeshShape& mesh);

/// A setting of the section moe that this model, which has no experts, cannot follow, if there is one.
std::optional<KeyProblem> moe_problem(const RunConfig& config, const models::ModelShape& shape);

/// Why the experts of this model cannot lie on such a mesh, if so.
std::optional<KeyProblem> experts_problem(const models::ModelShape& shape,
                                          const mesh::MeshShape& mesh);

/// Why optimizer.in_backward cannot be on such a mesh, if so.
std::optional<KeyProblem> in_backward_problem(const RunConfig& config, const mesh::MeshShape& mesh);

/// Optimizer steps of a run that has seen `samples_seen` of its training data's `num_rows` after `step`: train.steps, or
/// as many as let it see train.epochs times all of them, the last one rounded up.
int64_t num_steps(const TrainSection& train, int64_t num_rows, int64_t step, int64_t samples_seen);

/// Phases of the schedule that do not fit into a run of `steps`, which `origin` ("train.steps 100") asks for.
std::optional<KeyProblem> schedule_problem(const ScheduleSection& schedule, int64_t steps,
                                           const std::string& origin);

/// Where a value came from: "default", "job.yaml:12" or "command line".
using Origins = std::map<std::string, std::string>;

struct LoadedConfig {
  RunConfig config;
  Origins origins;  ///< by dotted key, every key of the field list
};

inline constexpr const char* kCommandLine = "command line";

/// A value that takes the place of the job file's.
struct Override {
  std::string key;    ///< "parallel.placement"
  std::string value;  ///< as on the command line
  std::string origin = kCommandLine;
  bool if_effective = false;  ///< left out where it could have no effect, instead of an error
};

/// "section.key=value" as an override. UserError if there is no "=".
Override parse_override(const std::string& text);

/// Is each micro-batch's gradient reduced by itself, where there is no pipeline? What placements free once
/// it is reduced, or keep in 8 bits.
bool reduces_each(const RunConfig& config);

/// Reads a job file ("": none, the defaults) and applies overrides, in order.
/// UserError: file, line, key, what was expected, the nearest right key. Looks at each value alone;
/// `check` at the rest.
LoadedConfig load_run_config(const std::string& file, const std::vector<Override>& overrides);

/// What one value alone cannot tell, no other file needed: batches that ranks cannot share, phases
/// longer than the run, settings that cannot take effect. Call it once `parallel.num_ranks` holds
/// the number of ranks of the whole run (as started or as joined); while that is -1 the questions
/// about ranks wait. UserError: origin (job.yaml:12, or --section.key), key, what was expected.
/// Keys missing in `origins` are defaults.
void check(const RunConfig& config, const Origins& origins);

/// What a key lacks to have an effect, "parallel.placement full_shard"; "" if it has one.
std::string needed_for_effect(const std::string& key, const RunConfig& config);

/// The resolved configuration as YAML; each line ends with a comment that says where the value came
/// from.
std::string print_config(const LoadedConfig& loaded);

/// The same configuration as YAML without comments; load_run_config reads it back to the same
/// values.
std::string to_yaml(const RunConfig& config);

/// Every key with type, default, range and meaning: as text for `tessera train --help`, as Markdown
/// for docs/config.md.
std::string config_help();
std::string config_markdown();

/// Applies the model section's overrides to a shape; what is wrong with the outcome, if anything
/// (a preset of another type included).
/// The head width follows dim / heads where either is given; gpt2's ffn_dim follows 4 dim; key
/// heads follow query heads where they were equal.
std::optional<models::ShapeProblem> override_shape(const ModelSection& model,
                                                   models::ModelShape& shape);

/// The shape that the model section asks for: preset or path, with overrides applied and checked.
models::ModelShape resolve_model_shape(const ModelSection& model);

}  // namespace tessera::config
