// Runs the source of GPU kernels on the CPU, for tests: blocks one after another in a random order,
// their threads as fibers that change at barriers and shuffles, in a random order too. A result that
// depends on the order is a race; a barrier that some threads of a block never reach ends the test.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static

namespace tessera::simt {

struct Index {
  unsigned x = 0;
};

/// Where the running fiber is.
struct Place {
  Index thread, block, block_dim, grid_dim;
};
const Place& place();

/// Runs `body` for each of `blocks` x `threads`. One at a time in a process.
void run(int64_t blocks, int threads, const std::function<void()>& body, int shared_bytes = 0);

inline constexpr int kMostShared = 64 << 10;

/// The shared bytes of the block that runs: at its start all ones, which are NaN.
void* shared_memory();

/// From now on another order.
void set_order(uint64_t seed);

/// Kernels run so far.
int64_t launches();

/// Waits for the block's other threads that still run.
void wait_for_block();

/// Sends 8 bytes to the warp's other threads, and gives those of lane ^ mask.
uint64_t exchange(uint64_t sent, int mask);

template <typename T>
T exchange_value(T value, int mask) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(bits, mask);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// One fiber runs at a time.
inline void atomicAdd(unsigned long long* sum, unsigned long long value) { *sum += value; }
inline void atomicMax(unsigned* largest, unsigned value) {
  if (value > *largest) *largest = value;
}
inline void atomicMin(int* least, int value) {
  if (value < *least) *least = value;
}

}  // namespace tessera::simt

using tessera::simt::atomicAdd;
using tessera::simt::atomicMax;
using tessera::simt::atomicMin;

#define threadIdx (::tessera::simt::place().thread)
#define blockIdx (::tessera::simt::place().block)
#define blockDim (::tessera::simt::place().block_dim)
#define gridDim (::tessera::simt::place().grid_dim)
#define __syncthreads ::tessera::simt::wait_for_block
#define __shfl_xor_sync(lanes, value, mask) ::tessera::simt::exchange_value(value, mask)
