// LibTorch's threads.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace tessera::kernels {

/// Calls `body(first, last)` for parts of [begin, end) of at least `grain` (but the last), one for each of LibTorch's threads, this one
/// among them; on this one alone where it is a part of such a loop itself. An exception of a body is thrown here.
///
/// Like at::parallel_for, which is a template of a header: where that is compiled without OpenMP it runs on one thread, and OpenMP of
/// ours would bring threads of its own beside LibTorch's. This one enters a loop that LibTorch has compiled. It takes a microsecond more.
void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  c10::function_ref<void(int64_t first, int64_t last)> body);

}  // namespace tessera::kernels
