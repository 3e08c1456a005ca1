// Attention beside LibTorch's scaled_dot_product_attention, forward and forward + backward, on one
// thread. Counter: useful work in flops per second (half of the square, since causal).
// LibTorch's products run here with AVX-512 (isa.cpp, note [MKL's instructions]), twice as fast as
// in a plain PyTorch on AMD; TESSERA_MKL_VENDOR_CHECK=1 measures it as PyTorch has it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <optional>

#include "tessera/kernels/attention.h"

namespace tessera::kernels {
namespace {

enum class Peer { ours, libtorch };

at::Tensor run(Peer peer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (peer == Peer::ours) return attention(q, k, v);
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          {}, 0.0, true, std::nullopt, q.size(2) != k.size(2))
      .transpose(1, 2);
}

void bench(benchmark::State& state, Peer peer, bool backward, at::ScalarType dtype) {
  at::set_num_threads(1);
  const int64_t batch = state.range(0), tokens = state.range(1), heads = state.range(2);
  const int64_t key_heads = state.range(3), dim = state.range(4);
  const auto make = [&](int64_t of_heads) {
    return at::randn({batch, tokens, of_heads, dim}, at::dtype(dtype)).requires_grad_(backward);
  };
  auto q = make(heads), k = make(key_heads), v = make(key_heads);
  const auto grad_out = at::randn({batch, tokens, heads, dim}, at::dtype(dtype));
  for (auto _ : state) {
    auto out = run(peer, q, k, v);
    if (!backward) continue;
    out.backward(grad_out);
    for (auto* x : {&q, &k, &v}) x->mutable_grad() = at::Tensor();
  }
  const double flops = (backward ? 14.0 : 4.0) / 2 * batch * heads * tokens * tokens * dim;
  state.counters["flops"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"B", "T", "H", "KV", "D"})->Unit(benchmark::kMillisecond);
  benchmark->MinWarmUpTime(0.05)->Args({2, 512, 8, 8, 64})->Args({8, 256, 8, 4, 32});
  benchmark->Args({1, 2048, 16, 16, 64})->Args({1, 4096, 32, 8, 64})->Args({1, 2048, 2, 2, 128});
}

BENCHMARK_CAPTURE(bench, ours_fp32_forward, Peer::ours, false, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(bench, libtorch_fp32_forward, Peer::libtorch, false, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(bench, ours_fp32_both, Peer::ours, true, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(bench, libtorch_fp32_both, Peer::libtorch, true, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(bench, ours_bf16_forward, Peer::ours, false, at::kBFloat16)->Apply(shapes);
BENCHMARK_CAPTURE(bench, libtorch_bf16_forward, Peer::libtorch, false, at::kBFloat16)
    ->Apply(shapes);
BENCHMARK_CAPTURE(bench, ours_bf16_both, Peer::ours, true, at::kBFloat16)->Apply(shapes);
BENCHMARK_CAPTURE(bench, libtorch_bf16_both, Peer::libtorch, true, at::kBFloat16)->Apply(shapes);

}  // namespace
}  // namespace tessera::kernels

BENCHMARK_MAIN();
