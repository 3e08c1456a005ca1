#include "tessera/kernels/cuda/kernels.h"
#include "tests/gpu/gpu_under_test.h"
#include "tests/gpu/guarded_memory.h"
#include "tests/support/simt.h"

namespace tessera {
namespace kernels::TESSERA_GPU_NAMESPACE {

Stream current_stream() { return nullptr; }

}  // namespace kernels::TESSERA_GPU_NAMESPACE

namespace testing {

const char* no_gpu() { return nullptr; }

void prepare_memory() { guard_tensors(); }

const kernels::FusedKernels& gpu_kernels() { return kernels::simt_gpu::gpu_kernels(); }

std::optional<int64_t> launches() { return simt::launches(); }

void set_order(uint64_t order) { simt::set_order(order); }

}  // namespace testing
}  // namespace tessera
