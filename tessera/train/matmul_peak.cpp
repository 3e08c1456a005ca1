#include "tessera/train/matmul_peak.h"

#include <torch/types.h>

#include <algorithm>
#include <chrono>

namespace tessera::train {

double matmul_peak(bool bf16) {
  constexpr int64_t kSize = 1024;
  const auto dtype = bf16 ? torch::kBFloat16 : torch::kFloat32;
  const auto a = torch::ones({kSize, kSize}, dtype), b = torch::ones({kSize, kSize}, dtype);
  auto c = torch::empty({kSize, kSize}, dtype);
  double best_seconds = 1e9;
  for (int i = 0; i < 12; ++i) {
    const auto start = std::chrono::steady_clock::now();
    at::mm_out(c, a, b);
    best_seconds =
        std::min(best_seconds,
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * kSize * kSize * kSize / best_seconds;
}

}  // namespace tessera::train
