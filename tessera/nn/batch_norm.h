// Batch normalisation whose statistics may be those of several ranks' batches together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "tessera/nn/hooked.h"

namespace tessera::nn {

/// Adds up a small contiguous tensor over ranks, in place: the same bits on all of them.
using SumOverRanks = std::function<void(const torch::Tensor&)>;

struct BatchNormOptions {
  double eps = 1e-5;
  /// Share of a new batch in the running statistics; none: the mean over all batches so far.
  std::optional<double> momentum = 0.1;
  bool affine = true;               ///< has weight and bias
  bool track_running_stats = true;  ///< else the batch's own statistics are used in evaluation, too
};

/// What a BatchNorm keeps, each [C], num_batches_tracked int64 and 0-d. PyTorch's names.
struct BatchNormState {
  torch::Tensor weight, bias;                                    ///< undefined: not affine
  torch::Tensor running_mean, running_var, num_batches_tracked;  ///< undefined: not tracked
};

/// Batch norm (Ioffe and Szegedy, ICML 2015) of [B, C, ..] over all dimensions but C, any number of
/// them: PyTorch's BatchNorm1d, 2d and 3d in one. Filled with PyTorch's initial values (ones and
/// zeros) unless on meta: there, call reset() once there is memory. bf16 and fp16 inputs are
/// normalised in fp32. A forward that activation checkpointing repeats updates the running
/// statistics twice, as in PyTorch.
class BatchNormImpl : public Hookable, public BatchNormState {
 public:
  explicit BatchNormImpl(int64_t num_features, const BatchNormOptions& options = {},
                         const torch::TensorOptions& tensor_options = {});
  /// Keeps these very tensors; of the options, eps and momentum count.
  BatchNormImpl(const BatchNormState& state, int64_t num_features, const BatchNormOptions& options);

  /// [B, C, ..] -> [B, C, ..]. ValueError: another shape, or one value per channel in training.
  torch::Tensor forward(const torch::Tensor& x);

  void reset();  ///< weight 1, bias 0, running mean 0 and variance 1, no batch seen

  /// From now on statistics and gradient sums in training are those of all ranks that `sum` adds
  /// over, so that the result is that of one rank with all their batches; empty: this rank's alone.
  /// Batches may be uneven, or empty on some ranks, but every rank must call forward and backward
  /// equally often. `sum` is called once in forward, with [count, sums, sums of squares] in fp64
  /// (2 C + 1), and once in backward, if the input needs a gradient, with
  /// [sum of dy, sum of dy x^] (2 C). Gradients of weight and bias remain this rank's: data
  /// parallelism adds them up.
  void synchronise(SumOverRanks sum) { sum_over_ranks_ = std::move(sum); }
  bool synchronised() const { return sum_over_ranks_ != nullptr; }

 private:
  double next_momentum();
  torch::Tensor forward_synchronised(const torch::Tensor& x);
  void update_running(const torch::Tensor& mean, const torch::Tensor& unbiased_var);

  int64_t num_features_;
  double eps_;
  std::optional<double> momentum_;
  SumOverRanks sum_over_ranks_;
};
using BatchNorm = Hooked<BatchNormImpl>;

}  // namespace tessera::nn
