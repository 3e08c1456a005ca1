// The collectives of a c10d backend itself: Gloo's on CPU tensors, NCCL's on a GPU's.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "tessera/comm/reduce.h"

namespace tessera::comm {

/// A collective that the backend runs on its own: Gloo on a thread, NCCL on a stream, after what
/// the caller's stream had been given before.
class NativeWork {
 public:
  NativeWork(c10::intrusive_ptr<c10d::Work> work, at::Tensor sums, double factor)
      : work_(std::move(work)), sums_(std::move(sums)), factor_(factor) {}

  /// Gloo: returns at the end. NCCL: returns at once, and what the caller's stream is given from
  /// then on comes after the collective.
  void wait();
  bool done() const { return work_->isCompleted(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor sums_;  // to be multiplied by factor_, where that is not 1
  double factor_;
};

/// Arguments as in group.h; tensors are flat. Sums are taken in the tensors' own type and the
/// backend's order; avg is the sum times 1 / ranks. The deadline is the backend's.
class NativeCollectives {
 public:
  explicit NativeCollectives(c10::intrusive_ptr<c10d::Backend> backend)
      : backend_(std::move(backend)) {}

  NativeWork all_reduce(at::Tensor tensor, ReduceOp op) const;
  NativeWork broadcast(at::Tensor tensor, int root) const;
  NativeWork all_gather(at::Tensor output, at::Tensor input) const;
  NativeWork all_gather_uneven(std::span<const at::Tensor> outputs, const at::Tensor& input) const;
  NativeWork reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) const;
  NativeWork scatter(const at::Tensor& output, std::span<const at::Tensor> inputs, int root) const;
  NativeWork all_to_all(at::Tensor output, at::Tensor input) const;

 private:
  NativeWork reduced(c10::intrusive_ptr<c10d::Work> work, const at::Tensor& sums,
                     ReduceOp op) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace tessera::comm
