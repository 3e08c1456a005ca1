// What the configuration's sections mean to the parts of the engine: the same for `tessera train`
// and for the Accelerator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/memory/activation_store.h"
#include "tessera/mesh/mesh.h"
#include "tessera/models/language_model.h"
#include "tessera/models/shape.h"
#include "tessera/nn/hooked.h"
#include "tessera/offload/buffers.h"
#include "tessera/offload/stored_stack.h"
#include "tessera/optim/learning_rate.h"
#include "tessera/parallel/data/options.h"
#include "tessera/parallel/data/units.h"

namespace tessera::train {

torch::Dtype torch_dtype(FloatType type);
/// The dtype of states that are not kept in blocks.
torch::Dtype state_dtype(optim::StateType type);

/// How a block ends: with a residual sum of its last product, whose value no gradient needs, or in
/// any way.
enum class BlockEnd { residual_sum, any };
BlockEnd block_end(const models::ModelShape& shape);
/// The same with an adapter: DoRA multiplies what a product gives, the last of a block, too, so a gradient
/// reads its value.
BlockEnd end_of_blocks(const models::ModelShape& shape, const models::AdapterSpec& adapter);

/// Checkpoints `blocks` as memory.checkpointing says.
void checkpoint_activations(const std::vector<nn::Hookable*>& blocks, BlockEnd end,
                            const config::MemorySection& section,
                            std::shared_ptr<memory::ActivationStore> offload = nullptr);
/// And what they keep waits where memory.offload_activations says: if on drives, in what this gives. UserError: in the
/// host's memory, and the mesh is of CPUs.
std::shared_ptr<offload::StoredStack> checkpoint_activations(
    const std::vector<nn::Hookable*>& blocks, BlockEnd end, const config::RunConfig& config,
    const mesh::DeviceMesh& mesh);
/// The same of a model's blocks with an adapter.
std::shared_ptr<offload::StoredStack> checkpoint_activations(models::LanguageModel& model,
                                                             const models::AdapterSpec& adapter,
                                                             const config::RunConfig& config,
                                                             const mesh::DeviceMesh& mesh);

/// The options that the sections parallel, precision and optimizer (which parameters decay) ask
/// for.
parallel::DataParallelOptions data_parallel_options(const config::RunConfig& config);

/// How a job's units are made of modules.
parallel::UnitRuleKind unit_rule_kind(parallel::Units units);

/// The schedule's, but for total_steps (set_length).
optim::LearningRateOptions learning_rate_options(const config::RunConfig& config);

/// How what is on drives comes and goes. host_memory is that of all together;
offload::StorageOptions storage_options(const config::RunConfig& config, int rank);
/// the part of one of those that share it evenly;
offload::StorageOptions part_of_storage(const config::RunConfig& config, int rank);
/// what the optimizer's states have beside parameters on drives.
offload::StorageOptions storage_beside_activations(const config::RunConfig& config, int rank);

}  // namespace tessera::train
