// Where what checkpointed modules keep waits for its backward, if not where it was computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "tessera/offload/stored_stack.h"

namespace tessera::memory {

/// Tensors that wait elsewhere until this is destroyed.
class StoredTensors {
 public:
  virtual ~StoredTensors() = default;

  /// Copies on the devices where they were, in their order; as often as wished.
  virtual std::vector<at::Tensor> tensors() = 0;
};

class ActivationStore {
 public:
  virtual ~ActivationStore() = default;

  /// Takes copies of `tensors`.
  virtual std::shared_ptr<StoredTensors> put(const std::vector<at::Tensor>& tensors) = 0;
};

/// Pinned memory of the host. put() throws c10::ValueError for tensors that are not on CUDA.
std::shared_ptr<ActivationStore> pinned_store();

/// Drives, for tensors of any device, through the host's memory. Throws as `stack` does.
std::shared_ptr<ActivationStore> drive_store(std::shared_ptr<offload::StoredStack> stack);

}  // namespace tessera::memory
