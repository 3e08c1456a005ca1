#include "tessera/train/matmul_peak.h"

#include <algorithm>
#include <chrono>

#include "tessera/kernels/cpu/matmul.h"
#include "tessera/train/engine_options.h"

namespace tessera::train {

double matmul_peak(const torch::TensorOptions& options) {
  const int64_t size = options.device().is_cpu() ? 1024 : 8192;
  const auto a = torch::ones({size, size}, options), b = torch::ones({size, size}, options);
  const auto c = torch::empty({size, size}, options);
  double best_seconds = 1e9;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 12; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernels::multiply(c, a, b, /*accumulate=*/false);
    c[0][0].item();  // a GPU is done only then
    best_seconds =
        std::min(best_seconds,
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    // Enough where products are slow: a run that takes seconds should not wait for its yardstick.
    if (i > 1 && std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(300)) break;
  }
  const auto n = static_cast<double>(size);
  return 2 * n * n * n / best_seconds;
}

double matmul_peak(const Run& run) {
  return matmul_peak(torch::device(run.device).dtype(torch_dtype(run.config.precision.compute)));
}

}  // namespace tessera::train
