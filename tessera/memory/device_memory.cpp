#include "tessera/memory/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "tessera/kernels/cpu/memory.h"

namespace tessera::memory {

DeviceMemory device_memory(c10::Device device) {
  if (device.is_cpu()) {
    const auto stats = kernels::allocator_stats();
    return {.tensors = stats.allocated_bytes,
            .peak_tensors = stats.peak_bytes,
            .reserved = stats.reserved_bytes,
            .peak_reserved = stats.reserved_bytes};
  }
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {.tensors = stats.allocated_bytes[kAll].current,
          .peak_tensors = stats.allocated_bytes[kAll].peak,
          .reserved = stats.reserved_bytes[kAll].current,
          .peak_reserved = stats.reserved_bytes[kAll].peak};
}

void reset_peak(c10::Device device) {
  if (device.is_cpu()) return kernels::reset_peak();
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

}  // namespace tessera::memory
