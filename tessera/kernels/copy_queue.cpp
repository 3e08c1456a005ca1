#include "tessera/kernels/copy_queue.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::kernels {
namespace {

class StreamOfCopies : public CopyQueue {
 public:
  explicit StreamOfCopies(at::Device device)
      : device_(device),
        streams_(device.type()),
        stream_(streams_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
        event_(device.type()) {}

  void start(const at::Tensor& to, const at::Tensor& from) override {
    event_.record(streams_.getStream(device_));
    event_.block(stream_);
    const c10::StreamGuard guard(stream_);
    to.copy_(from, /*non_blocking=*/true);
  }

  void after(std::function<void()> work) override {
    const c10::StreamGuard guard(stream_);
    work();
  }

  void wait() override {
    event_.record(stream_);
    event_.block(streams_.getStream(device_));
  }

  void finish() override {
    event_.record(stream_);
    event_.synchronize();
  }

 private:
  at::Device device_;
  c10::impl::VirtualGuardImpl streams_;
  c10::Stream stream_;
  c10::Event event_;  // recording it anew does not change what waits for it already
};

}  // namespace

std::unique_ptr<CopyQueue> copy_queue(at::Device device) {
  return std::make_unique<StreamOfCopies>(device);
}

}  // namespace tessera::kernels
