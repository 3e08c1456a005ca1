// Products of experts (grouped_linear.h), forward and backward, on 4096 rows that E experts share unevenly, beside a
// dense feed-forward's on as many rows: what is lost by small groups. By the processor's time of the thread.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "tessera/kernels/activation.h"
#include "tessera/kernels/grouped_linear.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kRows = 4096, kDim = 512, kInside = 704;

/// Gate, up and down of each group; how they and their gradients lie in a flat buffer.
struct Experts {
  at::Tensor x, gradient, counts;
  std::vector<GroupedMatrices> inside;
  GroupedMatrices down;

  Experts(int64_t groups, at::ScalarType dtype) {
    const auto flat = at::randn({groups, 3, kInside * kDim}).mul_(0.05).to(dtype),
               sinks = at::zeros({groups, 3, kInside * kDim});
    const auto matrix = [&](int64_t group, int64_t which, int64_t out, int64_t in) {
      auto weight = flat[group][which].view({out, in}).detach().requires_grad_();
      weight.mutable_grad() = sinks[group][which].view({out, in});
      return weight;
    };
    inside.resize(2);
    for (int64_t e = 0; e < groups; ++e) {
      for (int64_t m = 0; m < 2; ++m) {
        inside[static_cast<size_t>(m)].weights.push_back(matrix(e, m, kInside, kDim));
      }
      down.weights.push_back(matrix(e, 2, kDim, kInside));
    }
    x = at::randn({kRows, kDim}).to(dtype).requires_grad_();
    gradient = at::randn({kRows, kDim}).to(dtype);
    // From half of the mean to one and a half.
    counts = at::full({groups}, kRows / groups, at::kLong);
    const int64_t most = kRows / groups / 2;
    for (int64_t e = 0; e + 1 < groups; e += 2) {
      const int64_t moved = most * (e + 2) / (groups + 1);
      counts[e] += moved;
      counts[e + 1] -= moved;
    }
  }
};

void experts(benchmark::State& state, bool together) {
  const Experts all(state.range(1), state.range(0) != 0 ? at::kBFloat16 : at::kFloat);
  for (auto _ : state) {
    std::vector<at::Tensor> inside;
    if (together) {
      inside = grouped_linears(all.x, all.inside, all.counts);
    } else {
      for (const auto& member : all.inside) {
        inside.push_back(grouped_linear(all.x, member.weights, all.counts));
      }
    }
    const auto y = grouped_linear(swiglu(inside[0], inside[1]), all.down.weights, all.counts);
    torch::autograd::backward({y}, {all.gradient});
    all.x.mutable_grad().reset();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(3 * 3 * 2e-9 * kRows * kDim * kInside,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

/// The limit: matrices as large as a processor could wish.
void square_product(benchmark::State& state) {
  const auto dtype = state.range(0) != 0 ? at::kBFloat16 : at::kFloat;
  const auto a = at::randn({2048, 2048}).to(dtype), b = at::randn({2048, 2048}).to(dtype);
  for (auto _ : state) benchmark::DoNotOptimize(at::mm(a, b));
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * 2048 * 2048 * 2048, benchmark::Counter::kIsIterationInvariantRate);
}

void numbers_of_experts(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"bf16", "experts"})
      ->Unit(benchmark::kMillisecond)
      ->ArgsProduct({{0, 1}, {1, 8, 32, 128}});
}

BENCHMARK_CAPTURE(experts, apart, false)->Apply(numbers_of_experts);
BENCHMARK_CAPTURE(experts, together, true)->Apply(numbers_of_experts);
BENCHMARK(square_product)->ArgName("bf16")->Unit(benchmark::kMillisecond)->DenseRange(0, 1);

}  // namespace
}  // namespace tessera::kernels
