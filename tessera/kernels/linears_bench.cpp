// Products of one input, each as an operator of its own beside all as one (linears.h), on the shapes of
// `tiny` and `small`: 1024 tokens, weights and their gradients in flat buffers. Forward and backward, by the
// processor's time of the thread: other programs disturb it little.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>
#include <vector>

#include "tessera/kernels/activation.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/linears.h"

namespace tessera::kernels {
namespace {

struct Projections {
  at::Tensor x;
  std::vector<at::Tensor> weights, gradients;  ///< of the results

  Projections(int64_t in, const std::vector<int64_t>& outs, at::ScalarType dtype) {
    constexpr int64_t kRows = 1024;
    const int64_t all = at::tensor(outs).sum().item<int64_t>();
    const auto flat = at::randn({all, in}).mul_(0.05).to(dtype), sinks = at::zeros({all, in});
    x = at::randn({kRows, in}).to(dtype).requires_grad_();
    int64_t first = 0;
    for (const auto out : outs) {
      weights.push_back(flat.narrow(0, first, out).detach().requires_grad_());
      weights.back().mutable_grad() = sinks.narrow(0, first, out);
      gradients.push_back(at::randn({kRows, out}).to(dtype));
      first += out;
    }
  }

  std::vector<at::Tensor> results(bool together, ResultLayout layout) const {
    if (together) return linears(x, weights, {}, {.layout = layout});
    std::vector<at::Tensor> each;
    for (const auto& weight : weights) each.push_back(kernels::linear(x, weight));
    return each;
  }

  void count(benchmark::State& state) const {
    double numbers = 0;
    for (const auto& weight : weights) numbers += static_cast<double>(weight.numel());
    state.counters["GFLOP/s"] = benchmark::Counter(6e-9 * numbers * static_cast<double>(x.size(0)),
                                                   benchmark::Counter::kIsIterationInvariantRate);
  }
};

at::ScalarType dtype_of(const benchmark::State& state) {
  return state.range(0) != 0 ? at::kBFloat16 : at::kFloat;
}

void projections(benchmark::State& state, bool together) {
  const bool small = state.range(1) != 0;
  const Projections all(
      small ? 512 : 256,
      small ? std::vector<int64_t>{512, 512, 512} : std::vector<int64_t>{256, 128, 128},
      dtype_of(state));
  for (auto _ : state) {
    torch::autograd::backward(all.results(together, ResultLayout::apart), all.gradients);
    all.x.mutable_grad().reset();
  }
  all.count(state);
}

void gated(benchmark::State& state, bool together) {
  const int64_t in = state.range(1) != 0 ? 512 : 256, out = state.range(1) != 0 ? 1376 : 688;
  const Projections all(in, {out, out}, dtype_of(state));
  for (auto _ : state) {
    const auto results = all.results(together, ResultLayout::side_by_side);
    torch::autograd::backward({swiglu(results[0], results[1])}, {all.gradients[0]});
    all.x.mutable_grad().reset();
  }
  all.count(state);
}

/// A layer's products: of its forward, where the weight lies by columns; of its input's gradient, where it does not; of its weight's, where
/// the left factor does.
enum class LayerProduct { forward, of_input, of_weight };

/// With a matrix that comes from memory, as a layer's. Ours, or LibTorch's.
void product(benchmark::State& state, bool ours) {
  const int64_t rows = state.range(2), columns = state.range(3), depth = state.range(4);
  const auto which = static_cast<LayerProduct>(state.range(1));
  const auto matrix = [&](int64_t height, int64_t width, bool by_columns) {
    return by_columns ? at::randn({width, height}).to(dtype_of(state)).t()
                      : at::randn({height, width}).to(dtype_of(state));
  };
  const auto a = matrix(rows, depth, which == LayerProduct::of_weight);
  auto out = at::empty({rows, columns}, a.options());
  std::vector<at::Tensor> matrices;
  for (int64_t bytes = 0; bytes < 64 << 20;
       bytes += static_cast<int64_t>(a.element_size()) * depth * columns) {
    matrices.push_back(matrix(depth, columns, which == LayerProduct::forward));
  }
  size_t next = 0;
  for (auto _ : state) {
    const auto& b = matrices[next++ % matrices.size()];
    if (ours) {
      multiply(out, a, b, /*accumulate=*/false);
    } else {
      at::mm_out(out, a, b);
    }
  }
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(rows * columns * depth),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void shapes_of_products(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"bf16", "product", "rows", "columns", "depth"})
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
  for (const int64_t bf16 : {0, 1}) {
    for (const int64_t which : {0, 1, 2}) {
      for (const int64_t rows : {64, 256, 512, 1024}) {
        for (const auto& [columns, depth] : {std::pair<int64_t, int64_t>{512, 1376},
                                             {768, 768},
                                             {2048, 768},
                                             {768, 2048},
                                             {2048, 2048},
                                             {2048, 8192},
                                             {8192, 2048},
                                             {768, 32000},
                                             {256, 256},
                                             {704, 256},
                                             {256, 704},
                                             {256, 352}}) {
          bench->Args({bf16, which, rows, columns, depth});
        }
      }
    }
  }
}

void shapes_of_presets(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"bf16", "small"})->Unit(benchmark::kMicrosecond)->ArgsProduct({{0, 1}, {0, 1}});
}

BENCHMARK_CAPTURE(projections, apart, false)->Apply(shapes_of_presets);
BENCHMARK_CAPTURE(projections, together, true)->Apply(shapes_of_presets);
BENCHMARK_CAPTURE(gated, apart, false)->Apply(shapes_of_presets);
BENCHMARK_CAPTURE(gated, together, true)->Apply(shapes_of_presets);
BENCHMARK_CAPTURE(product, ours, true)->Apply(shapes_of_products);
BENCHMARK_CAPTURE(product, libtorch, false)->Apply(shapes_of_products);

}  // namespace
}  // namespace tessera::kernels
