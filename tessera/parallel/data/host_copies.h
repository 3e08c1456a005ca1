// Copies between whole buffers on a device and slices on its host, beside what is computed.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "tessera/kernels/copy_queue.h"

namespace tessera::parallel {

/// Slices come and gradients leave, each in their order. The tensors live until that is done.
class HostCopies {
 public:
  HostCopies(torch::Device device, const kernels::MakeCopyQueue& make);
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// `to`, on the device, becomes `slice`, in its own dtype.
  void bring(const torch::Tensor& to, const torch::Tensor& slice);
  /// What `work` asks the device for comes after what was brought so far.
  void after_coming(std::function<void()> work) { in_->after(std::move(work)); }
  /// The host waits: slices may be written again, and nothing else tells whoever does.
  void finish_coming();

  /// `slice` becomes `gradient` times `factor`, or that is added to it if it `adds`. `gradient` may be changed at once.
  void send(const torch::Tensor& slice, const torch::Tensor& gradient, double factor, bool adds);
  void finish_leaving();

 private:
  struct Leaving {
    torch::Tensor on_device, on_host, sum;  // sum: undefined, or what on_host is added to
    double factor;                          // of what is added
  };
  torch::Device device_;
  std::unique_ptr<kernels::CopyQueue> in_, out_;
  std::vector<torch::Tensor> coming_;
  std::vector<Leaving> leaving_;
};

}  // namespace tessera::parallel
