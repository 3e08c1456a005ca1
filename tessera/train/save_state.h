// The training state of a module of one's own and an optimizer of LibTorch's: saved in one call,
// loaded in one call, by any number of ranks.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/checkpoint/held_extents.h"
#include "tessera/mesh/mesh.h"
#include "tessera/parallel/data/data_parallel.h"

namespace tessera {

namespace lr_scheduler {
class LRScheduler;
}

/// Writes the checkpoint `directory`/step_<step, 8 digits>: the model's parameters, its buffers
/// (rank 0's), and what `optimizer` keeps (Adam, AdamW, SGD, RMSprop or Adagrad over
/// model.parameters(), in any groups), counts and learning rates, and where `scheduler` is, if the rates have one. Appears when it is
/// complete; `tessera checkpoint` reads it.
/// Replaces one of that step, if it is of the same tensors. Collective: the same folder and step on
/// all ranks. ValueError: another optimizer, one over other tensors, an unsharded model, ranks that
/// differ. UserError: another run writes there, or another model's stands there. SystemError: no
/// space.
void save_state(const std::filesystem::path& directory, const parallel::DataParallel& model,
                torch::optim::Optimizer& optimizer, const mesh::DeviceMesh& mesh, int64_t step,
                const lr_scheduler::LRScheduler* scheduler = nullptr);

/// Reads a checkpoint, or the newest complete one in a folder of them, whatever ranks, placement
/// and units it was saved under; gives its step. Collective. UserError: none there, another model's
/// or optimizer's, saved with a scheduler and loaded without or the other way round, damage.
int64_t load_state(const std::filesystem::path& directory, parallel::DataParallel& model,
                   torch::optim::Optimizer& optimizer, const mesh::DeviceMesh& mesh,
                   lr_scheduler::LRScheduler* scheduler = nullptr);

namespace train {

/// A model and the optimizers over its parameters(), if it has some, as they are saved.
struct SavedModel {
  const parallel::DataParallel* model = nullptr;
  std::vector<torch::optim::Optimizer*> optimizers = {};            ///< over parts of it
  std::function<std::string(std::string)> named = std::identity{};  ///< of the model's names
};

/// What this rank holds of it. `all_states`: of the optimizers, those not used yet included.
/// `buffers`: with the model's buffers.
std::vector<checkpoint::HeldExtent> held_parts(const SavedModel& saved, bool all_states,
                                               bool buffers);

/// An optimizer's count of steps, those of parameters that had fewer, and learning rates. `models`:
/// whose parameters it updates. Collective.
nlohmann::json counts_of(const torch::optim::Optimizer& optimizer,
                         const std::vector<SavedModel>& models, const mesh::Axis& axis);
void set_counts(torch::optim::Optimizer& optimizer, const std::vector<SavedModel>& models,
                const nlohmann::json& counts);

/// Reads `held` from `found`. UserError: it lacks one of them, or has a state of an optimizer that
/// none of `optimizers` keeps.
void load_all(const checkpoint::Checkpoint& found, const std::vector<checkpoint::HeldExtent>& held,
              const std::vector<const torch::optim::Optimizer*>& optimizers);

/// The checkpoint at `path`, or the newest complete one in it. UserError: there is none.
std::filesystem::path newest_checkpoint(const std::filesystem::path& path);

}  // namespace train
}  // namespace tessera
