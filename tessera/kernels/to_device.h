// Copies from the host for which it does not wait.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// `on_host` on `device`. To a GPU it goes through pinned memory, which LibTorch keeps until it has been read, in order
/// with the current stream's kernels.
at::Tensor to_device(const at::Tensor& on_host, at::Device device);

}  // namespace tessera::kernels
