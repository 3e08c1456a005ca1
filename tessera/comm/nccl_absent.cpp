#include <c10/util/Exception.h>

#include "tessera/comm/nccl.h"

namespace tessera::comm {

bool built_with_cuda() { return false; }

int num_gpus() { return 0; }

void select_gpu(int) { TORCH_INTERNAL_ASSERT(false, "this build has no CUDA"); }

std::string gpu_name(int) { TORCH_INTERNAL_ASSERT(false, "this build has no CUDA"); }

GpuModel gpu_model(int) { TORCH_INTERNAL_ASSERT(false, "this build has no CUDA"); }

c10::intrusive_ptr<c10d::Backend> make_nccl(const std::string&,
                                            const c10::intrusive_ptr<c10d::Store>&, int, int,
                                            std::chrono::milliseconds) {
  TORCH_INTERNAL_ASSERT(false, "this build has no CUDA");
}

}  // namespace tessera::comm
