// Checkpoints of a training run: what belongs in them, when they are saved, from which a run goes
// on.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/parts.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// What a run has counted. In a checkpoint's index, beside other state (only "step" must be there):
///   {"step": 100, "samples_seen": 1600, "tokens_seen": 409600,
///    "seeds": {"model": 1234, "data": 0},
///    "optimizer": {"type": "adamw", "step": 100},
///    "loss_scaler": {"scale": 65536.0, "growth_tracker": 100, "skipped_steps": 0}}
struct Counts {
  int64_t step = 0;  ///< optimizer steps, skipped ones included
  int64_t samples_seen = 0, tokens_seen = 0;
};

/// What an optimizer keeps for parts()[part] of a data-parallel model, by name: [n] as the part.
using PartStates = std::function<std::vector<std::pair<std::string, torch::Tensor>>(
    size_t part, const parallel::DataParallel::Part& which)>;

/// The parameters and optimizer states that this rank holds of a model, under the names that
/// `named` makes of the model's own. `divided`: parameters of which it has a part only.
std::vector<checkpoint::Part> held_parts(const parallel::DataParallel& parallel,
                                         const PartStates& states,
                                         const std::function<std::string(std::string)>& named,
                                         const parallel::TensorParts& divided = {});
std::vector<checkpoint::Part> held_state(Run& run);

/// Reads a checkpoint into a run, whatever ranks and placement wrote it. Collective. UserError:
/// another model's, or damage; then the run's state is undefined.
Counts load_checkpoint(Run& run, const std::filesystem::path& folder);

/// What checkpoint.resume asks for: which checkpoint was taken, and lines for people: what was
/// passed over and why, what differs. Collective. UserError: there are some, but none is usable.
struct Resumed {
  Counts counts;
  std::vector<std::string> notes;
  std::vector<std::filesystem::path> damaged;  ///< passed over
};
Resumed resume(Run& run);

/// Saves a run as its configuration says. Collective throughout. With nothing to save ever: does
/// nothing.
class Checkpointing {
 public:
  /// UserError: checkpoints of another run or of later steps in the folder, another run writing.
  Checkpointing(Run& run, const Resumed& resumed);

  bool enabled() const { return saver_ != nullptr; }

  /// Is a save due, by the clock of rank 0?
  bool wanted() const;

  /// Call after each step. `stop`: the run ends here for now. Lines for people: saves that failed,
  /// waits.
  std::vector<std::string> after_step(const Counts& counts, std::optional<double> validation_loss,
                                      const Wishes& wishes);

  /// Waits for the last save. SystemError if it failed: the run's result is not on disk.
  std::vector<std::string> finish();

 private:
  std::vector<std::string> take_messages();

  Run& run_;
  std::unique_ptr<checkpoint::Saver> saver_;
  std::chrono::steady_clock::time_point last_save_;
  std::string last_error_;
};

}  // namespace tessera::train
