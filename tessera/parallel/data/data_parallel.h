// Data parallelism over flat buffers: every rank of an axis holds the whole model and computes on
// its own part of the batch.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/nn/hooked.h"
#include "tessera/parallel/data/flat_buffer.h"

namespace tessera::parallel {

/// Modules whose parameters share one flat buffer and one collective.
struct UnitModules {
  std::string name;
  std::vector<nn::Hookable*> modules;
};

struct ReplicateOptions {
  /// Which parameters the optimizer decays; by default those with two or more dimensions (norms and
  /// biases not).
  std::function<bool(const FlatBuffer::Named&)> decays = [](const auto& named) {
    return named.second.dim() > 1;
  };
  /// Compare parameters over the ranks at the start (names, shapes, checksums): one pass and one
  /// small gather.
  bool check_parameters = true;
};

/// The handle of a replicated model. Gradients are summed, not averaged: scale the loss by the
/// reciprocal of the global number of valid tokens, so that the result is the same for any split of
/// the batch.
class Replicated {
 public:
  /// While false, backward only accumulates; set it to true before the backward of the last
  /// micro-batch.
  void set_requires_gradient_sync(bool required);

  /// Call after the last backward of a step: waits for the collectives, and starts those of units
  /// that no backward reached. DistError (rank, axis, operation, seconds) if a peer is lost.
  void finish_backward();

  /// After the optimizer's step.
  void zero_gradients();

  /// Buffers in the order of the units.
  const std::vector<FlatBuffer>& buffers() const;

  /// Names of parameters whose summed gradient is zero in every element: they took no part in the
  /// loss on any rank. They are updated with a zero gradient (weight decay applies). Cost: one pass
  /// over the gradients.
  std::vector<std::string> parameters_without_gradient() const;

 private:
  struct State;
  friend Replicated replicate(torch::nn::Module&, std::vector<UnitModules>, const mesh::Axis&,
                              const ReplicateOptions&);
  std::shared_ptr<State> state_;
};

/// Makes `model` data parallel over `axis` (DDP; Li et al., VLDB 2020): its parameters become views
/// of one flat buffer per unit. Each unit's gradients are all-reduced as soon as its backward has
/// ended, while that of earlier units goes on; the launches have one order on every rank (units in
/// reverse), whatever the order in which backwards end. Parameters of `model` in no unit:
/// ValueError names the first. A tied parameter belongs to the first unit that has it. Collective
/// when check_parameters is set: ValueError names the first parameter that differs from rank 0's.
/// Memory: parameters and gradients. A rank sends 2 P (N-1)/N elements per step.
Replicated replicate(torch::nn::Module& model, std::vector<UnitModules> units,
                     const mesh::Axis& axis, const ReplicateOptions& options = {});

}  // namespace tessera::parallel
