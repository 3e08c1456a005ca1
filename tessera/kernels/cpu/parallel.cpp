#include "tessera/kernels/cpu/parallel.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>

namespace tessera::kernels {

void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  c10::function_ref<void(int64_t first, int64_t last)> body) {
  if (begin >= end) return;
  constexpr int64_t kMostTasks = 1024;
  const int64_t count = end - begin, threads = at::get_num_threads();
  const int64_t tasks = std::min({kMostTasks, threads, (count + grain - 1) / grain});
  if (tasks <= 1 || at::in_parallel_region()) {
    body(begin, end);
    return;
  }
  // An element of `places` stands for a task: nothing reads or writes them.
  static const auto places = at::empty({kMostTasks}, at::kByte);
  const char* base = static_cast<const char*>(places.const_data_ptr());
  const int64_t size = (count + tasks - 1) / tasks;
  const auto of_tasks = places.narrow(0, 0, tasks);
  auto loop = at::TensorIteratorConfig()
                  .set_check_mem_overlap(false)
                  .check_all_same_dtype(false)
                  .resize_outputs(false)
                  .add_output(of_tasks)
                  .build();
  const auto run = [&](char** place, const int64_t* /*strides*/, int64_t inner, int64_t outer) {
    const int64_t first = begin + (place[0] - base) * size;
    if (first < end) body(first, std::min(end, first + inner * outer * size));
  };
  loop.for_each(run, /*grain_size=*/1);
}

}  // namespace tessera::kernels
