// From the configuration to a run that is ready for its first step: the one place that knows every
// technique.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "tessera/checkpoint/formats/stored_adapter.h"
#include "tessera/config/run_config.h"
#include "tessera/data/batch.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/mesh/mesh.h"
#include "tessera/models/language_model.h"
#include "tessera/offload/stored_stack.h"
#include "tessera/optim/learning_rate.h"
#include "tessera/optim/optimizer.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tessera/parallel/pipeline/pipeline.h"
#include "tessera/parallel/tensor/tensor_parallel.h"
#include "tessera/plan/run_plan.h"
#include "tessera/precision/loss_scaler.h"
#include "tessera/predict/communication.h"
#include "tessera/text/tokenizer.h"
#include "tessera/train/balance.h"
#include "tessera/train/fp8.h"
#include "tessera/train/questions.h"

namespace tessera::train {

/// What somebody wants of a run at the end of a step; any rank may.
struct StepRequests {
  bool save = false;
  bool stop = false;
  /// Training data was cut under this rank's hands (base/mapped_files.h): the step does not count.
  bool lost_data = false;
};

/// A parameter of the whole model, wherever it is.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  bool trained = true;
  optim::Treatment treatment = optim::Treatment::elements;
};

/// Sums of log-probabilities under the model as it is at the start, by document of the data (train/reference.h).
struct Reference {
  std::shared_ptr<const std::vector<double>> train, validation;
};

/// What steps of this rank moved to and from its drives. The first one writes behind what the others read.
struct DriveSteps {
  offload::SpaceCounters last, after_first;
  int64_t num_after_first = 0;
};

/// Everything a training loop works on.
struct Run {
  config::RunConfig config;
  mesh::Axis data_axis;          ///< ranks that take different rows of a batch
  mesh::Axis tensor_axis;        ///< ranks that divide matrices: they have the same rows and loss
  mesh::Axis pipeline_axis;      ///< ranks that divide the layers: they have the same rows
  mesh::Axis world;              ///< all ranks
  mesh::Axis save_axis;          ///< all ranks, for what goes on beside the steps
  torch::Device device;          ///< what this rank computes on
  std::vector<mesh::Axis> axes;  ///< every group of more than one rank, for accounting
  data::Loader train_loader;
  std::optional<data::Loader> validation_loader;
  std::shared_ptr<const text::Tokenizer> tokenizer;  ///< of the data; nullptr: bytes, or unknown
  std::optional<Questions> questions;                ///< of data.choices
  Reference reference;                               ///< of preference.loss sigmoid and ipo
  std::vector<std::string> data_notes;               ///< what was read of the data (open_data.h)
  int64_t num_steps = 0;                             ///< of the whole run: set_length
  std::shared_ptr<models::LanguageModel> model;
  std::vector<Parameter> parameters;   ///< in the order of the model
  parallel::TensorParts tensor_parts;  ///< what this rank has of divided parameters; empty: all
  parallel::DataParallel parallel;
  parallel::Pipeline pipeline;  ///< without pipeline parallelism: one stage on one rank
  plan::RunPlan plan;
  std::vector<Fp8Layer> fp8;         ///< in 8 bits, of the whole model
  std::string weights_note;          ///< what of those that are stored has no place, if any
  std::string fp8_note;              ///< by what they multiply, where that is to be said
  std::unique_ptr<Balance> balance;  ///< null: the model has no routers
  models::AdapterSpec adapter;       ///< the job's, or that of adapter.path
  std::shared_ptr<const checkpoint::AdapterPart>
      initial;  ///< PiSSA's; null: the base is as it is stored
  std::shared_ptr<const offload::StoredStack>
      activations;  ///< those that wait on drives; null: none do
  optim::Optimizer optimizer;
  optim::LearningRateOptions learning_rate;
  /// Bytes that micro-batches keep between forward and backward at the most so far (CPU).
  int64_t peak_activations = 0;
  int64_t peak_tensors = 0;  ///< bytes in all tensors at once, at the most in a step so far (CPU)
  predict::Communication traffic;                    ///< of the last step that was not skipped
  std::optional<DriveSteps> drives;                  ///< if something is there
  std::optional<torch::Dtype> autocast;              ///< precision.autocast
  std::optional<precision::LossScaler> loss_scaler;  ///< precision.compute fp16
  /// Told on this rank before each action of the pipeline.
  std::function<void(const schedule::Action&)> watch_action = [](const auto&) {};
  /// Asked on this rank once a step; what any rank answers, all learn with the step's loss.
  std::function<StepRequests()> requests = [] { return StepRequests{}; };

  const plan::RankPlan& rank_plan() const {  ///< of this rank
    return plan.ranks[static_cast<size_t>(pipeline_axis.rank())];
  }
};

/// Collective. UserError or ValueError before any training for whatever the user got wrong;
/// DistError if a rank is lost.
Run assemble(const config::RunConfig& config, const launch::RankEnvironment& environment);

/// The same over a mesh that exists already.
Run assemble(const config::RunConfig& config, const mesh::DeviceMesh& mesh);

/// Sets the steps of the whole run, and with them its learning rates, as train.steps or train.epochs
/// says, for a run that has seen so many samples after `step`. UserError: phases of the schedule
/// that do not fit.
void set_length(Run& run, int64_t step, int64_t samples_seen);

}  // namespace tessera::train
