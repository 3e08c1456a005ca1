#include "tessera/kernels/to_device.h"

namespace tessera::kernels {

at::Tensor to_device(const at::Tensor& on_host, at::Device device) {
  if (!device.is_cuda()) return on_host.to(device);
  return on_host.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace tessera::kernels
