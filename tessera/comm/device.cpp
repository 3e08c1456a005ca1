#include "tessera/comm/device.h"

#include <cstdlib>
#include <string>

#include "tessera/base/error.h"
#include "tessera/comm/nccl.h"

namespace tessera::comm {
namespace {

c10::Device gpu(int index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

void check_nccl(const DeviceQuestion& question) {
  constexpr auto kExpected = "backend: expected auto or gloo, got nccl: {}";
  if (!question.built_with_cuda) {
    user_error(kExpected, "this build has no CUDA (it needs nvcc, nccl.h and a CUDA LibTorch)");
  }
  if (question.num_gpus == 0) {
    user_error(kExpected, "no GPU is visible; see to the driver and CUDA_VISIBLE_DEVICES");
  }
  if (question.num_gpus > 1 && question.local_rank >= question.num_gpus) {
    user_error("num_ranks: expected at most {} (one per visible GPU), got {}", question.num_gpus,
               question.local_world_size);
  }
}

}  // namespace

bool bound_by_slurm(const std::function<const char*(const char*)>& variable) {
  const auto text = [&](const char* name) {
    const char* value = variable(name);
    return std::string(value == nullptr ? "" : value);
  };
  // As in "4(x2)". Where a task is alone on its machine, the ranks are its children.
  const auto tasks = text("SLURM_STEP_TASKS_PER_NODE");
  if (tasks.empty() || tasks == "1" || tasks.starts_with("1(")) return false;
  // One, perhaps of a kind, as in h100:1.
  const auto gpus = text("SLURM_GPUS_PER_TASK");
  if (gpus == "1" || gpus.ends_with(":1") || text("SLURM_NTASKS_PER_GPU") == "1") return true;
  const auto bind = text("SLURM_GPU_BIND");
  return bind.find("single:1") != std::string::npos || bind.find("per_task:1") != std::string::npos;
}

DeviceChoice choose_device(const DeviceQuestion& question) {
  switch (question.backend) {
    case BackendChoice::gloo:
      break;
    case BackendChoice::nccl:
      check_nccl(question);
      return {.device = gpu(question.num_gpus == 1 ? 0 : question.local_rank), .note = {}};
    case BackendChoice::automatic:
      if (question.num_gpus == 0) break;
      if (question.num_gpus == 1 && question.is_bound) return {.device = gpu(0), .note = {}};
      if (question.local_world_size <= question.num_gpus) {
        return {.device = gpu(question.local_rank), .note = {}};
      }
      return {
          .device = c10::kCPU,
          .note = fmt::format("{} ranks for {} visible GPUs: all compute on the CPU; start {} "
                              "for GPUs, or set backend to nccl where every process sees a GPU of "
                              "its own",
                              question.local_world_size, question.num_gpus, question.num_gpus)};
  }
  return {};
}

DeviceChoice choose_device(BackendChoice backend, int local_rank, int local_world_size) {
  auto choice = choose_device(
      {.backend = backend,
       .local_rank = local_rank,
       .local_world_size = local_world_size,
       .built_with_cuda = built_with_cuda(),
       .num_gpus = num_gpus(),
       .is_bound = bound_by_slurm([](const char* name) { return std::getenv(name); })});
  if (choice.device.is_cuda()) select_gpu(choice.device.index());
  return choice;
}

}  // namespace tessera::comm
