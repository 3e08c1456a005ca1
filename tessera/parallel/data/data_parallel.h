// Data parallelism in one engine: DDP, ZeRO 1 to 3, FSDP and HSDP are placements of the same flat
// buffers.
#pragma once

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/nn/hooked.h"
#include "tessera/optim/optimizer.h"
#include "tessera/parallel/data/flat_buffer.h"
#include "tessera/parallel/data/options.h"
#include "tessera/parallel/data/unit.h"
#include "tessera/parallel/data/units.h"

namespace tessera::parallel {

struct GradientNorm {
  double norm = 0;  ///< of the whole model's gradient, before clipping
  /// The first unit, in the order of the backward, whose gradient holds NaN or infinity on any
  /// rank; empty: none does.
  std::string nonfinite_unit;
};

/// Bytes on this rank, now and at the most so far.
struct DataParallelMemory {
  int64_t parameters = 0;                     ///< slices
  int64_t gathered = 0, peak_gathered = 0;    ///< whole parameters beside the slices
  int64_t gradients = 0, peak_gradients = 0;  ///< whole gradients and their slices
  int64_t peak_gathered_units = 0;            ///< full_shard units in memory at once
};

struct UnitWaits {
  std::string unit;
  UnitTimes times;  ///< communication that no work hid, since the start
};

/// The handle of a data-parallel model; copies are the same one. A step:
///
///     model.set_requires_gradient_sync(last);  // per micro-batch, if only the last is to reduce
///     loss.backward();
///     model.finish_backward();
///     model.clip_grad_norm(1.0);
///     optimizer.step();                        // of torch::optim, over model.parameters()
///     model.finish_step();
///
/// Parameters may be frozen and unfrozen (requires_grad_) between steps, and written between
/// unshard() and reshard(). ValueError, at the next forward or finish_step, if the module was moved
/// or cast after sharding, if a parameter was written where that is lost, and after a step of the
/// optimizer without finish_step().
class DataParallel {
 public:
  /// While false, backward only accumulates (whole gradients stay in memory); set it to true before
  /// the backward of the last micro-batch.
  void set_requires_gradient_sync(bool required);

  /// While false, finish_backward leaves out the sum over replicas (HSDP); set it to true before
  /// the last backward of a step.
  void set_is_last_backward(bool last);

  /// Reduced gradients are divided by it. The same for all backwards of a step.
  void set_gradient_divide_factor(double factor);

  /// Call before each forward and each backward of a pipeline, where several are under way at a
  /// time: says to which stage and micro-batch it belongs. Whole parameters that are freed between
  /// forward and backward are freed here, too.
  void begin_pass(int stage, int micro_batch);

  /// Two models of one loss whose ranks may use them differently: starts no reduction before all of `other`'s are
  /// started, so that ranks start them in one order; finish_backward() starts those of `other` that are left. For the
  /// lives of both.
  void reduce_after(const DataParallel& other);

  /// Call after each backward that reduces, or after several: waits for the collectives, and starts
  /// those of units that no backward reached. A unit that a second backward reached before it is
  /// reduced twice. DistError (rank, axis, operation, seconds) if a peer is lost; ValueError if a
  /// gradient came past the units' holders.
  void finish_backward();

  /// Call after the optimizer's step: gradients are zero or freed, whole parameters out of date.
  /// ValueError after a backward that reduces without its finish_backward. Collective where buffers
  /// are synchronised (DataParallelOptions::buffers).
  void finish_step();

  /// Is the backward of a forward still to come?
  bool forward_is_open() const;
  /// Did a backward that reduces begin, without its finish_backward() so far?
  bool backward_is_open() const;
  /// What the last backwards gave is dropped, parameters are as they were; also where forward_is_open(). ValueError
  /// where backward_is_open().
  void drop_gradients();

  /// Gathers the whole model, which stays so until reshard() or finish_step(); for using parameters
  /// outside of the modules' forward, and for many forwards without a step. After a backward what an
  /// optimizer wrote meanwhile is gathered, also before finish_step(). Collective. ValueError:
  /// parameters were written since the backward where that is lost.
  void unshard();
  /// Ends unshard(). Values that were written to parameters in between are kept, if all ranks wrote
  /// the same. Cost: one pass over this rank's slices. ValueError: an optimizer wrote slices in
  /// between that lie apart from the whole parameters (finish_step() ends that); a parameter has
  /// another shape or type now.
  void reshard();

  /// Collective; one pass over this rank's gradients. After finish_backward.
  GradientNorm gradient_norm() const;

  /// Scales the gradients so that the norm of the whole model's gradient is at most `max_norm`;
  /// gives the norm before. Collective. Not torch::nn::utils::clip_grad_norm_ over parameters(),
  /// which takes this rank's parts for all, and cannot be told from an intended change.
  double clip_grad_norm(double max_norm);
  void scale_gradients(double factor);  ///< this rank's; the same on all; 0 leaves no NaN

  /// What this rank's optimizer updates: one slice per unit, kind, treatment and decay group. Valid
  /// for life; gradients have memory between finish_backward and finish_step. For fused optimizers:
  /// who asked for them may no longer freeze or unfreeze parameters.
  struct Slice {
    torch::Tensor parameter, gradient;  ///< [n]
    torch::Tensor gradient_factor;      ///< [1]: what a gradient kept in 8 bits is multiplied by
    bool decayed = true, apart = false;
    bool on_drives = false;  ///< its optimizer states are to be kept there
    /// For a parameter on the meta device; see optim::Slice.
    torch::Tensor copy;
    std::function<torch::Tensor()> bring;
    std::function<void()> bring_gradient;
    optim::Treatment treatment = optim::Treatment::elements;
    int64_t begin = 0;  ///< position of its first element in the model, for any number of ranks
  };
  const std::vector<Slice>& slices() const;

  /// Call before fill() where some of slices() have a parameter on the meta device and a copy: bytes(i) are
  /// those of the parameter of slices()[i], which an optimizer keeps.
  void keep_masters(const std::function<offload::StoredBytes(size_t slice)>& bytes);
  /// What of all slices is on drives, as gathers take it; null: nothing.
  const offload::StoredRegions* stored() const;
  const offload::StoredRegions* stored_gradients() const;  ///< likewise, of their gradients
  int64_t memory_for_drives() const;                       ///< bytes of the buffers of both

  /// With DataParallelOptions::update_in_backward: update(i) changes slices()[i], whose gradient is
  /// reduced, for the last time in this step. Called during the backward and finish_backward, for
  /// each of slices() once a step, for those of a unit one after the other; their gradients are freed
  /// then. gradient_norm() is that of the gradients as they were. A backward that reaches a unit
  /// after that is a ValueError.
  void on_reduced(std::function<void(size_t slice)> update);

  /// For optimizers that need whole matrices. `slices`: of each of slices() of such, in order. Gathers
  /// each matrix from their directions, calls update(name, matrix, needed), whose result has the
  /// matrix's shape, and applies this rank's part of the results; where not `needed`, none is looked
  /// at. Collective over the ranks that share slices; they call update for the same matrices in the
  /// same order. Memory: the matrices of one unit, 2 bytes a number, 6 of this rank's. Cost: one gather
  /// of all matrices.
  using UpdateMatrix = std::function<torch::Tensor(const std::string& name,
                                                   const torch::Tensor& matrix, bool needed)>;
  void update_matrices(const optim::MatrixSlices& slices, const UpdateMatrix& update) const;

  /// This rank's part of each parameter of which it has one, as leaf tensors [n] in the order of
  /// parts(), frozen ones included, for optimizers of LibTorch's that treat elements alike (not
  /// LBFGS); the same ones at each call. Of those that are trained grad() is there between
  /// finish_backward and finish_step; zero_grad() of the optimizer does no harm.
  std::vector<torch::Tensor> parameters() const;
  /// The same by name, for groups of parameters with options of their own.
  torch::OrderedDict<std::string, torch::Tensor> named_parameters() const;

  /// The model's buffers, as they are on this rank.
  const std::vector<std::pair<std::string, torch::Tensor>>& named_buffers() const;

  /// What this rank holds of a parameter, frozen ones included.
  struct Part {
    FlatBuffer::OwnedExtent extent;
    offload::StoredBytes stored;    ///< of values on the meta device: their storage
    std::optional<size_t> slice;    ///< of slices(), in which it lies; none: frozen
    int64_t offset = 0;             ///< of its first element in that slice
    int replicas = 1, replica = 0;  ///< ranks that hold the same, and which of them this is
    std::string replica_group;      ///< the axis of those of them outside of the data axes
  };
  std::vector<Part> parts() const;  ///< in the order of the units

  /// Call after writing to slices() or parts(): whole parameters are out of date.
  void values_changed();

  /// Writes this rank's slices (of parameters that were on the meta device, or others). Cost: P/N.
  /// If check_parameters, collective: ValueError names the first parameter whose values differ
  /// between ranks that hold the same slice.
  void fill(const FlatBuffer::Fill& set);

  /// Names of parameters whose reduced gradient is zero in every element: they took no part in the
  /// loss on any rank. They are updated with a zero gradient (weight decay applies). After
  /// finish_backward. Collective; one pass over the gradients.
  std::vector<std::string> parameters_without_gradient() const;

  /// Names of parameters that are kept or gathered in 8 bits (DataParallelOptions::fp8_weights) and held
  /// NaN or infinity on any rank in this step, so that no scale is theirs.
  std::vector<std::string> parameters_without_scale() const;

  /// While on, the first unit whose output holds NaN or infinity is noted (a pass over each).
  void watch_outputs(bool on);

  /// The first unit, in the order of the forward, whose output held NaN or infinity on any rank
  /// since watching began; empty: none. Collective.
  std::string first_nonfinite_output() const;

  const std::vector<Unit>& units() const;
  DataParallelMemory memory() const;
  std::vector<UnitWaits> waits() const;

 private:
  struct Engine;
  Engine& engine() const;  // ValueError if a larger model's took its units
  friend DataParallel parallelise(torch::nn::Module&, std::vector<UnitModules>, const DataAxes&,
                                  const DataParallelOptions&);
  std::shared_ptr<Engine> engine_;
};

/// Makes `model` data parallel: the parameters of each unit become views of flat buffers
/// (flat_buffer.h); calling a unit's modules gathers them, their backward reduces gradients. The
/// next unit is gathered while one computes; gradients are reduced while earlier units' backward
/// goes on, all ranks in one order. Modules of a unit must be Hookable and called through their
/// holder.
///
/// What was sharded inside of `model` before (FSDP2's way: blocks first, then the root) keeps its
/// units and their options, and belongs to the new handle; the old ones are of no use then.
///
/// From here on the process's host tensors are allocated as kernels/cpu/memory.h says.
///
/// ValueError: a parameter of `model` in no unit; an override that matches no unit; an option that
/// cannot take effect; a model that is sharded already. Collective if check_parameters: ValueError
/// names the first parameter or unit that differs from rank 0's.
DataParallel parallelise(torch::nn::Module& model, std::vector<UnitModules> units,
                         const DataAxes& axes, const DataParallelOptions& options = {});

/// Shards `model` over the mesh's dp_shard and replicates over its dp_replicate (FSDP2's
/// fully_shard; with both axes: HSDP). `rule`: which modules form units.
DataParallel fully_shard(torch::nn::Module& model, const mesh::DeviceMesh& mesh,
                         const DataParallelOptions& options = {}, const UnitRule& rule = {});

/// DDP over all data ranks of the mesh.
DataParallel replicate(torch::nn::Module& model, const mesh::DeviceMesh& mesh,
                       DataParallelOptions options = {}, const UnitRule& rule = {});

}  // namespace tessera::parallel

namespace tessera {
using parallel::fully_shard;
using parallel::replicate;
}  // namespace tessera
