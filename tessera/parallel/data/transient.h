// A tensor whose memory comes and goes.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace tessera::parallel {

/// A 1-D tensor whose storage object lives on while its memory is away. Views of it, and tensors
/// that autograd saved of those, share the storage object: they are valid again as soon as there is
/// memory, and version counters do not move. Nothing may use one in between.
class Transient {
 public:
  Transient() = default;
  /// Without memory. `allocator`: of that; none: of the device.
  Transient(int64_t size, torch::Dtype dtype, torch::Device device,
            c10::Allocator* allocator = nullptr);

  const torch::Tensor& tensor() const { return tensor_; }
  int64_t size() const { return tensor_.defined() ? tensor_.numel() : 0; }
  bool allocated() const { return tensor_.defined() && storage()->data() != nullptr; }
  int64_t bytes() const { return allocated() ? static_cast<int64_t>(storage()->nbytes()) : 0; }

  /// Elements from `offset` as a tensor of its own that is no view: autograd may detach it, and its
  /// version tells of changes to itself alone.
  torch::Tensor part(int64_t offset, torch::IntArrayRef sizes) const;

  /// Memory that is filled before anybody sees it: a tensor of its own, whose memory take() makes
  /// this one's.
  torch::Tensor ahead() const { return torch::empty({size()}, tensor_.options()); }
  void take(const torch::Tensor& ahead);  ///< which has no memory then; nobody may use it

  void allocate();  ///< contents undefined; nothing if there is memory
  void free();      ///< nothing if there is no memory

 private:
  c10::StorageImpl* storage() const { return tensor_.storage().unsafeGetStorageImpl(); }

  torch::Tensor tensor_;
};

}  // namespace tessera::parallel
