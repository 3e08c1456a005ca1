#include "tessera/plan/buffer.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace tessera::plan {

BufferPlan plan_buffer(int64_t elements, const BufferOptions& options) {
  const bool alone = options.num_slices == 1;
  BufferPlan plan{.elements = elements,
                  .num_slices = options.num_slices,
                  .of_experts = options.of_experts,
                  .trained = options.trained,
                  .whole_bytes = options.whole_bytes,
                  .slice_bytes = options.slice_bytes,
                  .gradient_bytes = options.gradient_bytes};
  const bool fp8_weights = options.fp8_weights && options.trained;
  using parallel::OnDrives;
  const auto on_drives =
      options.device_is_host ? options.on_drives : std::min(options.on_drives, OnDrives::states);
  const bool stored = on_drives == OnDrives::parameters;
  const bool keeps_all = !stored && (alone || options.placement != parallel::Placement::full_shard);
  plan.keeps_whole = keeps_all && !fp8_weights;
  plan.keeps_codes = keeps_all && fp8_weights;
  plan.gathered_bytes = fp8_weights ? 1 : options.whole_bytes;
  plan.fp8_gradients = options.fp8_gradients && options.trained;
  plan.gradient_slice_bytes =
      plan.fp8_gradients ? 1 : std::max(options.slice_bytes, options.gradient_bytes);
  plan.gradient_on_drives =
      options.gradients_on_drives && options.trained && !options.in_backward && !plan.fp8_gradients;
  plan.keeps_gradient = !options.in_backward && !plan.fp8_gradients && !plan.gradient_on_drives &&
                        (alone || !parallel::frees_gradients(options.placement));
  plan.master_on_drives =
      on_drives >= OnDrives::masters && options.trained && !options.slice_has_type_of_whole;
  plan.keeps_copy = !plan.keeps_whole && !stored &&
                    (plan.master_on_drives || (options.offloaded && options.offloads_by_copy));
  plan.slice_in_whole = plan.keeps_whole && options.slice_has_type_of_whole && !options.offloaded;
  plan.gradient_slice_in_gradient = (plan.keeps_gradient || options.in_backward) &&
                                    options.gradient_has_type_of_sum && !options.offloaded &&
                                    !plan.fp8_gradients;
  plan.gradient = options.offloaded && !options.device_is_host ? Tier::host : Tier::device;
  plan.slice = stored ? Tier::drive : plan.gradient;
  plan.states = on_drives >= OnDrives::states ? Tier::drive : plan.gradient;
  return plan;
}

std::vector<bool> offloaded_units(const std::vector<int64_t>& elements, double fraction) {
  const auto all = std::accumulate(elements.begin(), elements.end(), int64_t{0});
  const double wanted = fraction * static_cast<double>(all);
  std::vector<bool> offloaded(elements.size(), false);
  double so_far = 0;
  for (size_t i = elements.size(); i-- > 0 && so_far < wanted;) {
    offloaded[i] = true;
    so_far += static_cast<double>(elements[i]);
  }
  return offloaded;
}

}  // namespace tessera::plan
