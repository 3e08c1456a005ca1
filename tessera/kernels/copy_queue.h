// Copies between a GPU and its host that go on beside what is computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace tessera::kernels {

/// One direction of copies, in their order. The host does not wait but in finish(), and for memory that is not pinned.
class CopyQueue {
 public:
  CopyQueue() = default;
  virtual ~CopyQueue() = default;
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  /// Copies `from` to `to`, alike in size, once what the device was asked for so far is done. Another dtype is made on the
  /// device. Until wait() the device may not use `to` nor write `from`, and neither may be freed; until finish() the host
  /// may not.
  virtual void start(const at::Tensor& to, const at::Tensor& from) = 0;

  /// Does `work`, now or in finish(): what it asks the device for comes after all copies started before, and nothing that is
  /// asked for elsewhere waits for it. What it starts on other streams (a collective) is to be waited for by itself.
  virtual void after(std::function<void()> work) = 0;

  /// What the device is asked for from now on comes after all copies started before.
  virtual void wait() = 0;

  /// The host waits until they are done.
  virtual void finish() = 0;
};

/// On a stream of its own of `device`. "Asked for": on the stream that is current where start() and wait() are called.
std::unique_ptr<CopyQueue> copy_queue(at::Device device);
using MakeCopyQueue = std::function<std::unique_ptr<CopyQueue>(at::Device device)>;

}  // namespace tessera::kernels
