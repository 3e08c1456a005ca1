// What a user chooses about data parallelism. Names are FSDP2's; defaults are its, too.
#pragma once

#include <torch/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/base/offload.h"
#include "tessera/kernels/copy_queue.h"
#include "tessera/offload/buffers.h"
#include "tessera/parallel/replication.h"

namespace tessera::parallel {

/// dtypes of a unit; none: as the parameters are stored.
struct MixedPrecisionPolicy {
  /// Parameters are gathered in it and computed with; the optimizer keeps an fp32 slice.
  std::optional<torch::Dtype> param_dtype;
  /// Gradients are accumulated and reduced in it; none: param_dtype. Sums of half precision are
  /// taken in fp32 and rounded once.
  std::optional<torch::Dtype> reduce_dtype;
  std::optional<torch::Dtype> output_dtype;  ///< of the unit's modules' results; none: as they come
  bool cast_forward_inputs = true;  ///< arguments that may carry a gradient are cast to param_dtype
  bool cast_constant_inputs = false;  ///< and the others of floating type, as FSDP2 does
};

/// What lives on the host instead of the device.
struct OffloadPolicy {
  bool offload_params = false;  ///< slices, their gradients and the optimizer's state and step
  /// The same, but for full_shard a copy of the slices stays on the device, in the dtype of
  /// computation, so that gathers wait for no transfer (ZeRO-Offload; Ren et al., ATC 2021).
  bool offload_optimizer = false;
  /// Whatever else is offloaded: the optimizer's states are kept on drives (DataParallel::Slice::on_drives),
  /// and what it updates, if that is kept beside whole parameters in another dtype, and slices of
  /// full_shard. Its step is on the host, so on a GPU this is offload_optimizer, too, unless it is
  /// offload_params, and only states are on drives. Parameters must be on the meta device (fill()).
  OnDrives on_drives = OnDrives::nothing;
  bool gradients_on_drives = false;  ///< reduced ones, until the step; not with update_in_backward
  offload::StorageOptions storage;   ///< of slices on drives, and of gradients
  /// The share of the parameters that is offloaded, in whole units: those last in the forward,
  /// whose gradients come first and are on their way while backward goes on.
  double fraction = 1;
};

/// What units may differ in.
struct UnitOptions {
  Placement placement = Placement::full_shard;
  ReshardAfterForward reshard_after_forward = true;
  MixedPrecisionPolicy mixed_precision;
};

/// Other options for the units whose name matches `pattern` (`*`: anything).
struct UnitOverride {
  std::string pattern;
  UnitOptions options;
};

/// What becomes of the model's buffers (running means) at finish_step. Averages are of those of
/// floating type; the others are rank 0's.
enum class BufferSync { per_rank, broadcast, average };

struct DataParallelOptions {
  UnitOptions unit;                     ///< of every unit
  std::vector<UnitOverride> overrides;  ///< the last that matches counts
  OffloadPolicy offload;
  /// What copies between a device and slices on its host; none: streams of a GPU, and a CPU waits for each. For tests.
  kernels::MakeCopyQueue copy_queue;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = true;
  /// full_shard: no prefetch starts while so many units' whole parameters are in memory.
  int max_gathered_units = 3;
  /// Reduced gradients are divided by it; none: by the number of data ranks, which gives the mean.
  std::optional<double> gradient_divide_factor;
  /// Which parameters the optimizer decays; by default those with two or more dimensions (norms and
  /// biases not).
  std::function<bool(const std::string& name, const torch::Tensor& parameter)> decays =
      [](const std::string&, const torch::Tensor& parameter) { return parameter.dim() > 1; };
  /// How an optimizer updates a parameter: those treated alike are a range of their own in each
  /// buffer; whole matrices (Muon) decay, and where states share scales by blocks, no slice's
  /// boundary falls inside of one. By default each number alone.
  std::function<optim::Treatment(const std::string& name, const torch::Tensor& parameter)>
      treatment;
  /// Each unit's slices are updated as soon as its gradient is reduced, which is then freed
  /// (DataParallel::on_reduced).
  bool update_in_backward = false;
  /// Which parameters an optimizer updates by settings of its own: they have a buffer of their own in
  /// each unit. By default none.
  std::function<bool(const std::string& name, const torch::Tensor& parameter)> apart;
  /// Which parameters are of experts that other ranks share than all else
  /// (mesh::MeshShape::experts_apart): other ranks of ep have others in their place. They have a
  /// buffer of their own in each unit, which the ranks of expert_shard and expert_replicate share. By
  /// default none.
  std::function<bool(const std::string& name)> of_experts;
  /// Which parameters are kept and gathered whole in 8 bits, E4M3 with a scale for each, and are there
  /// in the dtype of computation only while their unit runs; the optimizer's slice stays as it is.
  /// They have a buffer of their own in each unit. By default none.
  std::function<bool(const std::string& name)> fp8_weights;
  /// Reduced gradients are kept in 8 bits, E4M3 with a scale for each buffer. For optimizers over
  /// slices(); reduce each micro-batch's, as whole gradients pass.
  bool fp8_gradients = false;
  /// Gradients are sent in 8 bits and added up in float32 (fp8_sum.h).
  bool fp8_communication = false;
  /// How ranks outside of the data axes share a parameter (tensor parallelism); none: they do not.
  std::function<Replication(const std::string& name)> replication;
  /// Compare parameters over the ranks at the start: names, shapes, order of units, and checksums
  /// of values that are there. One pass and one small gather.
  bool check_parameters = true;
  /// The values of rank 0 count: others receive their slices.
  bool sync_module_states = false;
  /// per_rank: each keeps its own (FSDP); broadcast: rank 0's (DDP); average: the mean over ranks.
  BufferSync buffers = BufferSync::per_rank;
};

}  // namespace tessera::parallel
