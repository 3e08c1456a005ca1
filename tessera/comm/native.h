// The collectives of a c10d backend itself: Gloo's on CPU tensors, NCCL's on a GPU's.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "tessera/comm/reduce.h"

namespace tessera::comm {

/// A collective that the backend runs on its own: Gloo on a thread, NCCL on a stream, after what
/// the caller's stream had been given before.
class NativeWork {
 public:
  /// `finish`: what is left to do with the result; may be empty.
  explicit NativeWork(c10::intrusive_ptr<c10d::Work> work, std::function<void()> finish = {})
      : work_(std::move(work)), finish_(std::move(finish)) {}

  /// Gloo: returns at the end. NCCL: returns at once, and what the caller's stream is given from
  /// then on comes after the collective.
  void wait();
  bool done() const { return work_->isCompleted(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::function<void()> finish_;
};

/// Arguments as in group.h; tensors are flat. Sums are taken in the tensors' own type and the
/// backend's order; avg is the sum times 1 / ranks. The deadline is the backend's. Backends lose a
/// NaN in max and min, depending on whose it is, so those are taken of whole numbers in the same
/// order as the elements, with NaN beyond all: some passes over the tensor more, and a copy of it.
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
  /// `received`, `sent`: rows of output and input by rank; empty: the same of each.
  NativeWork all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> received = {},
                        std::vector<int64_t> sent = {}) const;

 private:
  using Start =
      std::function<c10::intrusive_ptr<c10d::Work>(at::Tensor& output, at::Tensor& input)>;
  NativeWork reduced(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                     const Start& start) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace tessera::comm
