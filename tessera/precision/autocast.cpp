#include "tessera/precision/autocast.h"

#include <ATen/autocast_mode.h>

namespace tessera::precision {

Autocast::Autocast(at::ScalarType dtype, at::DeviceType device)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      previous_dtype_(at::autocast::get_autocast_dtype(device)) {
  TORCH_CHECK_VALUE(dtype == at::kBFloat16 || dtype == at::kHalf,
                    "autocast: expected bfloat16 or float16, got ", dtype);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::set_autocast_dtype(device, dtype);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_dtype_);
}

}  // namespace tessera::precision
