// What tensors take on the device that computes: this process's part of it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::memory {

struct DeviceMemory {
  int64_t tensors = 0;        ///< bytes in live tensors
  int64_t peak_tensors = 0;   ///< the most of them since the start or reset_peak()
  int64_t reserved = 0;       ///< held from the device, with what is kept for later tensors
  int64_t peak_reserved = 0;  ///< of a GPU: the most of them since reset_peak()
};

/// On a CPU as its caching allocator counts (kernels/cpu/memory.h: zeros without one), on a GPU as LibTorch's.
DeviceMemory device_memory(c10::Device device);

/// The peaks become what there is.
void reset_peak(c10::Device device);

}  // namespace tessera::memory
