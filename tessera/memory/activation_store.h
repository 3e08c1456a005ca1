// Where what checkpointed modules keep waits for its backward, if not where it was computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "tessera/kernels/copy_queue.h"
#include "tessera/offload/stored_stack.h"

namespace tessera::memory {

/// Tensors that wait elsewhere until this is destroyed.
class StoredTensors {
 public:
  virtual ~StoredTensors() = default;

  /// Copies on the devices where they were, in their order, or the tensors themselves if they are still there; as often
  /// as wished.
  virtual std::vector<at::Tensor> tensors() = 0;
};

class ActivationStore {
 public:
  virtual ~ActivationStore() = default;

  /// Takes copies of `tensors`.
  virtual std::shared_ptr<StoredTensors> put(const std::vector<at::Tensor>& tensors) = 0;
};

/// Pinned memory of the host, to which copies go on beside the forward, and from which the next ones come beside the
/// backward. On the device meanwhile: what was put last and what comes next. c10::ValueError: tensors that are not on
/// CUDA, or on several devices; tensors that were changed in place before the next put(). `make`: for tests, the two
/// directions, of any device.
std::shared_ptr<ActivationStore> pinned_store(kernels::MakeCopyQueue make = {});

/// Drives, for tensors of any device, through the host's memory. Throws as `stack` does.
std::shared_ptr<ActivationStore> drive_store(std::shared_ptr<offload::StoredStack> stack);

}  // namespace tessera::memory
