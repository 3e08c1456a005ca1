#include "tessera/kernels/autocast.h"

#include <ATen/autocast_mode.h>

namespace tessera::kernels {

bool is_autocast(const at::Tensor& x) {
  const auto device = x.device().type();
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device) &&
         x.is_floating_point() && x.scalar_type() != at::kDouble;
}

at::Tensor autocast(const at::Tensor& x) {
  if (!is_autocast(x)) return x;
  const auto device = x.device().type();
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device);
}

at::Tensor autocast_weight(const at::Tensor& weight) {
  return is_autocast(weight) ? autocast(weight).detach() : weight;
}

}  // namespace tessera::kernels
