// Memory and time of activation checkpointing: 8 blocks of the width of `tiny` (256, 8 heads, 4 key
// heads, 688 inside), micro-batches of 4 x 256 tokens, float32. The cases take turns, so that the
// machine's moods meet all; the time is that of the processor (set OMP_NUM_THREADS=1).
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "tessera/kernels/cpu/memory.h"
#include "tessera/memory/activation_checkpointing.h"
#include "tessera/memory/testing.h"

namespace tessera::memory {
namespace {

constexpr int64_t kBlocks = 8, kBatch = 4, kSeqLen = 256, kRounds = 21;
constexpr double kMiB = 1 << 20;

struct Case {
  const char* name;
  CheckpointOptions options;
  std::vector<Block> blocks = {};
  double live_mib = 0, peak_mib = 0;
  std::vector<double> milliseconds = {};
};

void build(Case& one) {
  one.blocks = make_blocks(kBlocks, {.dim = 256, .heads = 8, .key_heads = 4, .inner = 688});
  for (auto& block : one.blocks) {
    for (auto& parameter : block->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
  }
  checkpoint_blocks(hookables(one.blocks), one.options);
}

void step(Case& one, const torch::Tensor& x, const torch::Tensor& gradient) {
  const auto before = kernels::allocator_stats().allocated_bytes;
  const auto mib = [&](int64_t bytes) { return static_cast<double>(bytes - before) / kMiB; };
  kernels::reset_peak();
  const auto start = std::clock();
  const auto y = run_blocks(one.blocks, x);
  one.live_mib = mib(kernels::allocator_stats().allocated_bytes);
  y.backward(gradient);
  one.milliseconds.push_back(1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  one.peak_mib = mib(kernels::allocator_stats().peak_bytes);
}

void run() {
  std::vector<Case> cases = {
      {"none", {.mode = CheckpointMode::none}},
      {"selective", {.mode = CheckpointMode::selective}},
      {"selective, drop_last_product",
       {.mode = CheckpointMode::selective, .drop_last_product = true}},
      {"feed_forward, drop_last_product",
       {.mode = CheckpointMode::feed_forward, .drop_last_product = true}},
      {"full, every 2nd", {.every_k = 2}},
      {"full", {}},
  };
  for (auto& one : cases) build(one);
  const auto x = torch::randn({kBatch, kSeqLen, 256});
  const auto gradient = torch::ones_like(x);
  for (int64_t round = 0; round < kRounds; ++round) {
    for (auto& one : cases) step(one, x, gradient);
  }
  fmt::print("{:30} {:>22} {:>10} {:>20}\n", "checkpointing", "live after forward MiB", "peak MiB",
             "forward+backward ms");
  for (auto& one : cases) {
    std::ranges::nth_element(one.milliseconds, one.milliseconds.begin() + kRounds / 2);
    fmt::print("{:30} {:22.1f} {:10.1f} {:20.1f}\n", one.name, one.live_mib, one.peak_mib,
               one.milliseconds[kRounds / 2]);
  }
}

}  // namespace
}  // namespace tessera::memory

int main() {
  tessera::kernels::install_caching_allocator();
  tessera::memory::run();
}
