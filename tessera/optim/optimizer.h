// Optimizers on flat slices.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/optim/state_kind.h"
#include "tessera/optim/stored_states.h"

namespace tessera::optim {

/// The slices of matrices that muon updates, in order, one at a time so that no more memory is needed
/// than for one.
struct MatrixSlices {
  std::function<torch::Tensor(size_t slice)> direction;  ///< bfloat16 [n]; to be asked for once
  /// Takes this slice's part of orthogonalised() (muon.h) of the whole matrices, float32 [n].
  std::function<void(size_t slice, const torch::Tensor& orthogonal)> apply;
};

struct OptimizerOptions {
  OptimizerType type = OptimizerType::adamw;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  ///< adamw; lion: beta1 and beta2
  double momentum = 0;                           ///< sgd; 0: no momentum buffer
  double muon_momentum = 0.95;
  bool muon_nesterov = true;
  int64_t muon_steps = 5;
  MuonScale muon_scale = MuonScale::match_rms_adamw;
  /// muon: applies to each slice what its direction gives. Called once a step, whether this rank has any
  /// or not.
  std::function<void(const MatrixSlices& slices)> orthogonalise;
  /// The dtype of the optimizer's state: float32, or bfloat16 (on the CPU; adamw only).
  torch::Dtype state_dtype = torch::kFloat32;
  /// Parameters of 16 bits, bfloat16 states and those of adamw's blocks are rounded up or down at random
  /// so that the mean is exact (kernels/flat.h), which lets small updates count; else to nearest.
  bool stochastic_rounding = false;
  uint64_t seed = 0;  ///< of the rounding
  /// Where the states are kept of slices that have them on drives.
  offload::StorageOptions storage;
};

/// Part of a flat buffer that one optimizer group owns: 1-D, contiguous, parameter and gradient of
/// equal length. Arithmetic is in float32; the parameter may be bfloat16 (on the CPU) or float16, the
/// gradient bfloat16 (on the CPU), float16 or float8.
struct Slice {
  torch::Tensor parameter, gradient;
  double weight_decay = 0;  ///< decoupled, but added to the gradient in sgd
  /// matrices: parts of some that muon updates. blocks: adamw8bit keeps 8 bits of each state, adamw 8
  /// and 16 bits (StateType::fp8_fp16); the
  /// slice begins at a block's first number and has whole blocks, whose numbers behind the last of
  /// a parameter are nobody's, and move. Others adamw updates beside these.
  Treatment treatment = Treatment::elements;
  double rate = 1;  ///< times the learning rate
  /// Position of the first element among all parameters of the run: stochastic rounding depends on
  /// it, so that the result is the same however parameters are divided among ranks.
  int64_t first_position = 0;
  /// If defined: bfloat16 of equal length; each step leaves the new parameter here, rounded to
  /// nearest, in the same pass.
  torch::Tensor copy;
  /// float32 [1]: what a float8 gradient is multiplied by. Valid for life.
  torch::Tensor gradient_factor;
  bool on_drives = false;  ///< its states are (stored_states.h); the parameter is on the host
  /// For a parameter that is on drives, too (and so on the meta device): gives its numbers [n], on
  /// the host, to be changed by an update, until the next call for another slice. Where `copy` is defined,
  /// the parameter is among the states instead (Optimizer::stored_parameter), and if the copy is on the
  /// meta device, this gives room for its numbers. Not with muon's matrices.
  std::function<torch::Tensor()> bring;
  /// For a gradient that is on drives: gives it memory and its numbers, until the next call for another
  /// slice.
  std::function<void()> bring_gradient;
};

/// Keeps the state of every slice from the first step, or the first look at it.
class Optimizer {
 public:
  /// Throws c10::ValueError where a dtype or rounding is asked for that this device or type cannot;
  /// as StoredStates where states are kept on drives.
  Optimizer(std::vector<Slice> slices, OptimizerOptions options);

  /// One update; gradients are multiplied by `gradient_scale` first (clipping, loss scaling), in
  /// the same pass for adamw. The gradients may be changed by a step. Cost: one pass over
  /// parameters, gradients and state; muon: beside that DataParallel::update_matrices, and
  /// 4 muon_steps m products of matrices [m, m] [m, n], m being the smaller side. Collective with
  /// muon.
  void step(double learning_rate, double gradient_scale = 1);

  /// The same update a slice at a time, in any order: begin_step(), then each of slices() once.
  /// Not with muon.
  void begin_step() { ++step_; }
  void update(size_t slice, double learning_rate, double gradient_scale = 1);

  const std::vector<Slice>& slices() const { return slices_; }
  const OptimizerOptions& options() const { return options_; }

  /// What is kept for slices()[slice]: [kind.count(n)] each, zero before the first step. Valid for
  /// life. Of what is on drives a tensor on the meta device stands for it.
  std::vector<std::pair<StateKind, torch::Tensor>> states(size_t slice);
  /// The bytes of states(slice)[kind] where they are on drives.
  offload::StoredBytes stored_state(size_t slice, size_t kind) {
    return stored_->bytes(slice, kind);
  }
  /// The numbers of a parameter among the states. Whoever writes them writes the copy, too.
  offload::StoredBytes stored_parameter(size_t slice);
  /// What of all slices is on drives; null: nothing.
  const StoredStates* stored() const { return stored_.get(); }

  std::vector<StateKind> state_kinds(Treatment treatment) const;  ///< of such slices

  int64_t num_steps() const { return step_; }                   ///< updates made
  void set_num_steps(int64_t num_steps) { step_ = num_steps; }  ///< beside states(), to go on

  int64_t state_bytes() const;  ///< of what it keeps in memory, buffers for drives included

 private:
  using UsePart = std::function<void(const Slice& part, const std::vector<torch::Tensor>& states)>;
  void for_each_part(size_t slice, const UsePart& use);
  std::vector<StateKind> stored_kinds(size_t slice) const;
  bool is_stored(size_t slice) const { return !stored_kinds(slice).empty(); }
  const std::vector<torch::Tensor>& state(size_t index);
  void step_muon(double learning_rate, double gradient_scale);

  std::vector<Slice> slices_;
  OptimizerOptions options_;
  std::vector<std::vector<torch::Tensor>> states_;  // of each slice, as state_kinds() has them
  std::unique_ptr<StoredStates> stored_;
  int64_t step_ = 0;
};

}  // namespace tessera::optim
