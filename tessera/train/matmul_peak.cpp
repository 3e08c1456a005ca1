#include "tessera/train/matmul_peak.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "tessera/comm/nccl.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/train/engine_options.h"

namespace tessera::train {

double matmul_peak(const torch::TensorOptions& options) {
  const int64_t size = options.device().is_cpu() ? 1024 : 8192;
  // A GPU multiplies ones faster than what it will meet.
  const auto a = torch::randn({size, size}, options), b = torch::randn({size, size}, options);
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

std::optional<double> published_peak(std::string_view gpu) {
  struct Peak {
    std::string_view name;
    double tera;
  };
  // A name that begins with another one comes before that. From data sheets of NVIDIA and AMD.
  static constexpr Peak kPeaks[] = {{"NVIDIA GB200", 2500},
                                    {"NVIDIA B200", 2250},
                                    {"NVIDIA H200 NVL", 835.5},
                                    {"NVIDIA H200", 989.4},
                                    {"NVIDIA GH200", 989.4},
                                    {"NVIDIA H100 PCIe", 756},
                                    {"NVIDIA H100 NVL", 835.5},
                                    {"NVIDIA H100", 989.4},
                                    {"NVIDIA H800", 989.4},
                                    {"NVIDIA H20", 148},
                                    {"NVIDIA A100", 312},
                                    {"NVIDIA A800", 312},
                                    {"NVIDIA A40", 149.7},
                                    {"NVIDIA A30", 165},
                                    {"NVIDIA A10G", 70},
                                    {"NVIDIA A10", 125},
                                    {"NVIDIA L40S", 362},
                                    {"NVIDIA L40", 181},
                                    {"NVIDIA L4", 121},
                                    {"NVIDIA RTX A6000", 154.8},
                                    {"NVIDIA GeForce RTX 5090", 209.5},
                                    {"NVIDIA GeForce RTX 4090", 165.2},
                                    {"NVIDIA GeForce RTX 3090", 71},
                                    {"AMD Instinct MI300X", 1307.4},
                                    {"AMD Instinct MI250X", 383}};
  for (const auto& [name, tera] : kPeaks) {
    if (gpu.starts_with(name)) return tera * 1e12;
  }
  return {};
}

MatmulPeak matmul_peak(const Run& run) {
  const auto type = run.config.precision.compute;
  if (run.device.is_cuda() && type != FloatType::fp32) {
    const auto name = comm::gpu_name(run.device.index());
    if (const auto peak = published_peak(name))
      return {.flops = *peak, .note = fmt::format("published, {}, {}", name, text_of(type))};
  }
  return {.flops = matmul_peak(torch::device(run.device).dtype(torch_dtype(type))),
          .note = fmt::format("measured, {}", text_of(type))};
}

}  // namespace tessera::train
