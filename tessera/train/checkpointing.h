// Checkpoints of a training run: what belongs in them, when they are saved.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/held_extents.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/train/assemble.h"
#include "tessera/train/resume.h"

namespace tessera::train {

/// Something that an optimizer keeps for a part of a parameter.
struct PartState {
  std::string name;
  torch::Tensor values;  ///< as many as the part has numbers, or blocks of them
  int64_t block = 1;     ///< numbers of the parameter, from its first one, that share one
  offload::StoredBytes stored = {};  ///< where `values` is on the meta device
};

/// What an optimizer keeps for parts()[part] of a data-parallel model.
using PartStates =
    std::function<std::vector<PartState>(size_t part, const parallel::DataParallel::Part& which)>;

/// The parameters and optimizer states that this rank holds of a model, under the names that
/// `named` makes of the model's own. `divided`: parameters of which it has a part only.
std::vector<checkpoint::HeldExtent> held_parts(const parallel::DataParallel& parallel,
                                               const PartStates& states,
                                               const std::function<std::string(std::string)>& named,
                                               const parallel::TensorParts& divided = {});
/// What a run trains, and its optimizer's states.
std::vector<checkpoint::HeldExtent> held_state(Run& run);

/// Every tensor of a run that its checkpoints hold, in the order of the model: of an adapter's run
/// what is trained alone.
checkpoint::Expected expected_tensors(Run& run);

/// Saves a run as its configuration says. Collective throughout. With nothing to save ever: does
/// nothing.
class Checkpointing {
 public:
  /// UserError: checkpoints of another run or of later steps in the folder, another run writing.
  Checkpointing(Run& run, const Resumed& resumed);

  bool enabled() const { return saver_ != nullptr; }

  /// Is a save due, by the clock of rank 0?
  bool wanted() const;

  /// Call after each step. `stop`: the run ends here for now. A step is saved once, and in any case if its validation is
  /// among the checkpoint.keep_best lowest. Lines for people: saves that failed, waits.
  std::vector<std::string> after_step(const Counts& counts, std::optional<double> validation_loss,
                                      const StepRequests& requests);

  /// Waits for the last save. SystemError if it failed: the run's result is not on disk.
  std::vector<std::string> finish();

 private:
  std::vector<std::string> take_messages();
  bool is_among_best(std::optional<double> validation_loss);

  Run& run_;
  std::unique_ptr<checkpoint::Saver> saver_;
  std::chrono::steady_clock::time_point last_save_;
  std::string last_error_;
  std::string run_id_;
  nlohmann::json data_;                          ///< as data_of() tells
  std::optional<checkpoint::BaseWeights> base_;  ///< as base_of() tells
  int64_t last_saved_ = -1;                      ///< step
  std::vector<double>
      best_;  ///< the lowest validation losses of checkpoints, ascending; keep_best at most
};

}  // namespace tessera::train
