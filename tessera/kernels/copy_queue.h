// Copies between a GPU and its host that go on beside what is computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>

namespace tessera::kernels {

/// One direction of copies, in their order. The host never waits.
class CopyQueue {
 public:
  CopyQueue() = default;
  virtual ~CopyQueue() = default;
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  /// Copies `from` to `to`, alike in size and dtype, one of them in pinned memory, once what the device was asked for
  /// so far is done. Until wait() neither may be freed, `from` not written, and `to` not used.
  virtual void start(const at::Tensor& to, const at::Tensor& from) = 0;

  /// What the device is asked for from now on comes after all copies started before.
  virtual void wait() = 0;
};

/// On a stream of its own of `device`. "Asked for": on the stream that is current where start() and wait() are called.
std::unique_ptr<CopyQueue> copy_queue(at::Device device);

}  // namespace tessera::kernels
