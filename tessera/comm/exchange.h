// Collectives built from point-to-point messages of a c10d backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "tessera/comm/call.h"
#include "tessera/comm/queue.h"
#include "tessera/comm/reduce.h"

namespace tessera::comm {

/// Messages go straight from and into the tensors' memory, all peers at once. Every function is
/// collective, blocks, and throws MissingPeers (with the peer's rank and the backend's words) when
/// a peer is lost or the deadline passes.
class Exchange {
 public:
  /// `ranks`: the group's, as the run counts them; for errors.
  Exchange(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> ranks)
      : backend_(std::move(backend)), ranks_(std::move(ranks)) {}

  /// Throws std::runtime_error on every rank, with both calls, if one is in another call. Asks only
  /// for the first 64 calls, because it costs a message to every peer: ranks that differ do so from
  /// the start. Without it Gloo ends the process at a message of another size.
  void compare_calls(const Call& call, const Deadline& deadline);

  /// outputs[r] = rank r's inputs[this rank]; one contiguous tensor a rank, sizes may differ, empty
  /// ones are not sent.
  void all_to_all(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs,
                  const Deadline& deadline);

  /// outputs[r] = rank r's input. A rank sends (N-1) inputs.
  void all_gather(std::span<const at::Tensor> outputs, const at::Tensor& input,
                  const Deadline& deadline);

  /// output [n] = rank root's inputs[this rank]; `inputs` is used on the root alone.
  void scatter(const at::Tensor& output, std::span<const at::Tensor> inputs, int root,
               const Deadline& deadline);

  /// output [n] = op over r of rank r's inputs[this rank], where inputs[r] has rank r's size (they
  /// may differ). Needs at most 8 MiB of staging memory. `output` may be inputs[this rank].
  void reduce_scatter(const at::Tensor& output, std::span<const at::Tensor> inputs, ReduceOp op,
                      const Deadline& deadline);

  /// Reduces in place: reduce_scatter of N nearly equal slices, then all_gather. `tensor` is flat
  /// and contiguous.
  void all_reduce(const at::Tensor& tensor, ReduceOp op, const Deadline& deadline);

  int64_t staging_bytes() const { return staging_bytes_; }  ///< the most that was used at once

  /// The rank of the group whose message is waited for now; -1: none. From any thread.
  int awaited() const { return awaited_; }

 private:
  int rank() const { return backend_->getRank(); }
  int size() const { return backend_->getSize(); }

  c10::intrusive_ptr<c10d::Backend> backend_;
  int tag_ = 0;    // one for each all_to_all, counted alike by all ranks
  int calls_ = 0;  // compared so far
  std::vector<int> ranks_;
  std::atomic<int64_t> staging_bytes_ = 0;
  std::atomic<int> awaited_ = -1;
};

/// The flat `tensor` in `parts` consecutive slices of ceil(numel / parts) elements; the last ones
/// may be short or empty.
std::vector<at::Tensor> slices_of(const at::Tensor& tensor, int parts);

}  // namespace tessera::comm
