#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/kernels/cuda/kernels.h"
#include "tests/gpu/gpu_under_test.h"

namespace tessera::testing {
namespace {

using kernels::FusedKernels;

/// Of a table's function, the same that returns when the GPU is done.
template <auto kMember, typename Function>
struct Waiting;
template <auto kMember, typename Result, typename... Arguments>
struct Waiting<kMember, Result (*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    const auto function = kernels::cuda_kernels()->*kMember;
    if constexpr (std::is_void_v<Result>) {
      function(std::forward<Arguments>(arguments)...);
      c10::cuda::device_synchronize();
    } else {
      auto result = function(std::forward<Arguments>(arguments)...);
      c10::cuda::device_synchronize();
      return result;
    }
  }
};

template <auto kMember>
constexpr auto waiting() {
  using Function = std::remove_cvref_t<decltype(std::declval<FusedKernels>().*kMember)>;
  return &Waiting<kMember, Function>::call;
}

/// Memory of the host that a GPU reads and writes. What was freed is kept by size: pinning takes long. Filled with NaNs.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, c10::Device(c10::kCPU)};
    const size_t block = std::bit_ceil(std::max<size_t>(size, 4096));
    void* data = nullptr;
    {
      const std::lock_guard lock(mutex());
      auto& free = free_blocks()[block];
      if (!free.empty()) {
        data = free.back();
        free.pop_back();
      }
    }
    if (data == nullptr) TORCH_CHECK(cudaMallocHost(&data, block) == cudaSuccess);
    std::memset(data, 0xff, block);
    const std::lock_guard lock(mutex());
    sizes()[data] = block;
    return {data, data, give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return give_back; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  // They outlive every tensor.
  static std::mutex& mutex() {
    static auto* made = new std::mutex;
    return *made;
  }
  static std::map<size_t, std::vector<void*>>& free_blocks() {
    static auto* made = new std::map<size_t, std::vector<void*>>;
    return *made;
  }
  static std::map<void*, size_t>& sizes() {
    static auto* made = new std::map<void*, size_t>;
    return *made;
  }
  static void give_back(void* data) {
    if (data == nullptr) return;
    const std::lock_guard lock(mutex());
    free_blocks()[sizes()[data]].push_back(data);
  }
};

}  // namespace

const char* no_gpu() { return c10::cuda::device_count() > 0 ? nullptr : "no GPU is at hand"; }

void prepare_memory() {
  static PinnedAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
}

const FusedKernels& gpu_kernels() {
  static constexpr FusedKernels kKernels = {
      .rms_norm = waiting<&FusedKernels::rms_norm>(),
      .rms_norm_grad = waiting<&FusedKernels::rms_norm_grad>(),
      .layer_norm = waiting<&FusedKernels::layer_norm>(),
      .layer_norm_grad = waiting<&FusedKernels::layer_norm_grad>(),
      .rotary = waiting<&FusedKernels::rotary>(),
      .swiglu = waiting<&FusedKernels::swiglu>(),
      .swiglu_grad = waiting<&FusedKernels::swiglu_grad>(),
      .gelu_tanh = waiting<&FusedKernels::gelu_tanh>(),
      .cross_entropy = waiting<&FusedKernels::cross_entropy>(),
      .sum_of_rows = waiting<&FusedKernels::sum_of_rows>(),
      .adamw = waiting<&FusedKernels::adamw>(),
      .round_stochastically = waiting<&FusedKernels::round_stochastically>(),
      .drop = waiting<&FusedKernels::drop>(),
      .sum_of_squares = waiting<&FusedKernels::sum_of_squares>(),
      .add = waiting<&FusedKernels::add>(),
      .fp8_cast = waiting<&FusedKernels::fp8_cast>()};
  return kKernels;
}

std::optional<int64_t> launches() { return {}; }

void set_order(uint64_t) {}

}  // namespace tessera::testing
