// Each fused operator beside its plain version on the shapes of a small Llama: 1024 tokens, width
// 512, 32,000 words. Forward and backward together.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <functional>
#include <string_view>
#include <vector>

#include "tessera/kernels/activation.h"
#include "tessera/kernels/adamw8bit.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/cpu/memory.h"
#include "tessera/kernels/cpu/quantised_kernel.h"
#include "tessera/kernels/flat.h"
#include "tessera/kernels/linear.h"
#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/kernels/low_rank_linear.h"
#include "tessera/kernels/quantised_linear.h"
#include "tessera/kernels/reference.h"
#include "tessera/kernels/rms_norm.h"
#include "tessera/kernels/rotary.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kTokens = 1024, kWidth = 512, kInner = 1376, kWords = 32000;

using Tensors = std::vector<at::Tensor>;

void forward_backward(benchmark::State& state, const std::function<at::Tensor(const Tensors&)>& op,
                      Tensors inputs) {
  const auto dtype = state.range(0) != 0 ? at::kBFloat16 : at::kFloat;
  for (auto& x : inputs) x = x.to(dtype).requires_grad_();
  const auto grad = at::ones_like(op(inputs)).detach();
  for (auto _ : state) {
    const auto gradients = torch::autograd::grad({op(inputs)}, inputs, {grad});
    benchmark::DoNotOptimize(gradients[0].data_ptr());
  }
}

void rms_norm_ours(benchmark::State& state) {
  forward_backward(state, [](const Tensors& t) { return rms_norm(t[0], t[1], 1e-5); },
                   {at::randn({kTokens, kWidth}), at::randn({kWidth})});
}
void rms_norm_plain(benchmark::State& state) {
  forward_backward(state, [](const Tensors& t) { return rms_norm_reference(t[0], t[1], 1e-5); },
                   {at::randn({kTokens, kWidth}), at::randn({kWidth})});
}
void add_rms_norm_ours(benchmark::State& state) {
  forward_backward(
      state,
      [](const Tensors& t) {
        const auto [sum, y] = add_rms_norm(t[0], t[1], t[2], 1e-5);
        return sum + y;
      },
      {at::randn({kTokens, kWidth}), at::randn({kTokens, kWidth}), at::randn({kWidth})});
}
void add_rms_norm_apart(benchmark::State& state) {
  forward_backward(
      state,
      [](const Tensors& t) {
        const auto sum = t[0] + t[1];
        return sum + rms_norm(sum, t[2], 1e-5);
      },
      {at::randn({kTokens, kWidth}), at::randn({kTokens, kWidth}), at::randn({kWidth})});
}
void rotary_ours(benchmark::State& state) {
  const auto [cos, sin] = rotary_tables(512, 64);
  forward_backward(state,
                   [&cos = cos, &sin = sin](const Tensors& t) { return rotary(t[0], cos, sin); },
                   {at::randn({2, 512, 8, 64})});
}
void rotary_plain(benchmark::State& state) {
  const auto [cos, sin] = rotary_tables(512, 64);
  forward_backward(
      state,
      [&cos = cos, &sin = sin](const Tensors& t) { return rotary_reference(t[0], cos, sin); },
      {at::randn({2, 512, 8, 64})});
}
void swiglu_ours(benchmark::State& state) {
  forward_backward(state, [](const Tensors& t) { return swiglu(t[0], t[1]); },
                   {at::randn({kTokens, kInner}), at::randn({kTokens, kInner})});
}
void swiglu_plain(benchmark::State& state) {
  forward_backward(state, [](const Tensors& t) { return swiglu_reference(t[0], t[1]); },
                   {at::randn({kTokens, kInner}), at::randn({kTokens, kInner})});
}
void gelu_tanh_ours(benchmark::State& state) {
  forward_backward(state, [](const Tensors& t) { return gelu_tanh(t[0]); },
                   {at::randn({kTokens, kInner})});
}
void gelu_tanh_plain(benchmark::State& state) {
  forward_backward(state, [](const Tensors& t) { return gelu_tanh_reference(t[0]); },
                   {at::randn({kTokens, kInner})});
}

/// The gradient buffers of the weights are there, in float32, as in training.
void with_gradient_buffers(benchmark::State& state, bool ours, bool head) {
  const auto dtype = state.range(0) != 0 ? at::kBFloat16 : at::kFloat;
  const int64_t out = head ? kWords : kInner;
  auto x = at::randn({kTokens, kWidth}, dtype).requires_grad_();
  auto weight = (at::randn({out, kWidth}) * 0.05).to(dtype).requires_grad_();
  weight.mutable_grad() = at::zeros(weight.sizes());
  x.mutable_grad() = at::zeros_like(x);
  const auto targets = at::randint(kWords, {kTokens}, at::kLong);
  const LinearCrossEntropyOptions options{
      .loss = 1.0 / kTokens, .weight_gradient = weight.grad(), .chunk_rows = state.range(1)};
  const auto grad = at::ones({kTokens, out}, dtype);
  for (auto _ : state) {
    if (head) {
      (ours ? linear_cross_entropy(x, weight, targets, options)
            : linear_cross_entropy_reference(x, weight, targets, 1.0 / kTokens))
          .backward();
    } else {
      (ours ? kernels::linear(x, weight) : at::linear(x, weight)).backward(grad);
    }
  }
  state.counters["GFLOP/s"] = benchmark::Counter(6e-9 * kTokens * kWidth * static_cast<double>(out),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
void linear_cross_entropy_ours(benchmark::State& state) {
  with_gradient_buffers(state, true, true);
}
void linear_cross_entropy_plain(benchmark::State& state) {
  with_gradient_buffers(state, false, true);
}
void linear_ours(benchmark::State& state) { with_gradient_buffers(state, true, false); }
void linear_plain(benchmark::State& state) { with_gradient_buffers(state, false, false); }

/// An adapter of rank range(1) beside a frozen weight: one operator, or products and a sum of their own.
void with_adapter(benchmark::State& state, bool ours) {
  const auto dtype = state.range(0) != 0 ? at::kBFloat16 : at::kFloat;
  auto x = at::randn({kTokens, kWidth}, dtype).requires_grad_();
  const auto weight = (at::randn({kInner, kWidth}) * 0.05).to(dtype);
  auto a = at::randn({state.range(1), kWidth}, dtype).requires_grad_();
  auto b = at::randn({kInner, state.range(1)}, dtype).requires_grad_();
  for (auto* parameter : {&a, &b}) parameter->mutable_grad() = at::zeros(parameter->sizes());
  const FrozenMatrix base{.forward =
                              [&](const auto& rows, const auto& more) {
                                return sum_of_products({rows, weight.t()}, more);
                              },
                          .backward =
                              [&](const auto& rows, const auto& more) {
                                return sum_of_products({rows, weight}, more);
                              },
                          .squared_row_norms = {}};
  const auto grad = at::ones({kTokens, kInner}, dtype);
  for (auto _ : state) {
    const auto y = ours
                       ? low_rank_linear(x, base, {a, b, 2})
                       : kernels::linear(x, weight) + kernels::linear(kernels::linear(x, a), b) * 2;
    y.backward(grad);
    x.mutable_grad().reset();
  }
}
void low_rank_linear_ours(benchmark::State& state) { with_adapter(state, true); }
void low_rank_linear_apart(benchmark::State& state) { with_adapter(state, false); }

/// One update of 8 M elements: all float32; bfloat16 parameter and states; the same with stochastic
/// rounding. LibTorch's fused kernel beside it.
void adamw_ours(benchmark::State& state) {
  constexpr int64_t kCount = int64_t{8} << 20;
  const auto dtype = state.range(0) != 0 ? at::kBFloat16 : at::kFloat;
  const auto parameter = at::randn({kCount}).to(dtype), gradient = at::randn({kCount});
  const auto exp_avg = at::zeros({kCount}, dtype), exp_avg_sq = at::zeros({kCount}, dtype);
  AdamWOptions options;
  if (state.range(1) != 0) options.rounding = StochasticRounding{};
  for (auto _ : state) adamw(parameter, gradient, exp_avg, exp_avg_sq, options);
}
/// The same with states of 8 bits.
void adamw8bit_ours(benchmark::State& state) {
  constexpr int64_t kCount = int64_t{8} << 20;
  const auto parameter = at::randn({kCount}).to(state.range(0) != 0 ? at::kBFloat16 : at::kFloat);
  const auto gradient = at::randn({kCount});
  const auto moment = [] {
    return BlockCodes{.codes = at::zeros({kCount}, at::kByte), .absmax = at::zeros({kCount / 256})};
  };
  const auto mean = moment(), square = moment();
  AdamWOptions options;
  if (state.range(1) != 0) options.rounding = StochasticRounding{};
  for (auto _ : state) adamw8bit(parameter, gradient, mean, square, options);
}
void adamw_libtorch(benchmark::State& state) {
  constexpr int64_t kCount = int64_t{8} << 20;
  const auto dtype = state.range(0) != 0 ? at::kBFloat16 : at::kFloat;
  std::vector<at::Tensor> t;
  for (int i = 0; i < 4; ++i) t.push_back(at::rand({kCount}).to(dtype));
  const auto step = at::ones({});
  for (auto _ : state) {
    at::_fused_adamw_({t[0]}, {t[1]}, {t[2]}, {t[3]}, {}, {step}, 1e-3, 0.9, 0.95, 0.1, 1e-8, false,
                      false);
  }
}

/// Ten element-wise operations on tensors of range(0) MiB, each into a new tensor.
void tensor_loop(benchmark::State& state) {
  const auto x = at::ones({state.range(0) << 18});
  for (auto _ : state) {
    auto y = x;
    for (int i = 0; i < 10; ++i) y = y + x;
    benchmark::DoNotOptimize(y.data_ptr());
  }
}

/// A weight [out, in] of range(3) by range(2), and range(1) rows of the dtype of range(0): y and the
/// gradient of x (`train`), or y alone. The plain weight is frozen, too.
struct Product {
  at::Tensor x, weight, gradient;
  explicit Product(const benchmark::State& state) {
    const auto dtype = state.range(0) != 0 ? at::kBFloat16 : at::kFloat;
    weight = (at::randn({state.range(3), state.range(2)}) * 0.02).to(dtype);
    x = at::randn({state.range(1), state.range(2)}, dtype).requires_grad_();
    gradient = at::randn({state.range(1), state.range(3)}, dtype);
  }
};
template <typename Multiply>
void products(benchmark::State& state, const Product& product, const Multiply& multiply) {
  const bool trains = state.range(1) > kQuantisedGemvRows;
  for (auto _ : state) {
    const auto y = multiply(product.x);
    benchmark::DoNotOptimize(y.data_ptr());
    if (trains) {
      const auto dx = torch::autograd::grad({y}, {product.x}, {product.gradient});
      benchmark::DoNotOptimize(dx[0].data_ptr());
    }
  }
  const auto numbers = static_cast<double>(product.weight.numel() * state.range(1));
  state.counters["GFLOP/s"] = benchmark::Counter((trains ? 4e-9 : 2e-9) * numbers,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
void product_dense(benchmark::State& state) {
  const Product product(state);
  products(state, product, [&](const auto& x) { return kernels::linear(x, product.weight); });
}
template <WeightFormat format>
void product_quantised(benchmark::State& state) {
  const Product product(state);
  const auto weight = quantise(product.weight, format);
  products(state, product, [&](const auto& x) { return quantised_linear(x, weight); });
}
void quantise_weight(benchmark::State& state) {
  const auto weight = at::randn({2048, 8192});
  const auto format = static_cast<WeightFormat>(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(quantise(weight, format).codes.data_ptr());
  state.SetItemsProcessed(state.iterations() * weight.numel());
}

void with_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"bf16", "rows", "in", "out"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  for (const int64_t bf16 : {0, 1}) {
    for (const int64_t rows : {1, 4, 64, 512}) {
      bench->Args({bf16, rows, 2048, 8192})->Args({bf16, rows, 8192, 2048});
    }
  }
}
void both_dtypes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"bf16"})->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();
}
void with_chunks(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"bf16", "chunk_rows"})->Unit(benchmark::kMillisecond)->UseRealTime();
  bench->ArgsProduct({{0, 1}, {0, 128, 512, 1024}});
}
void without_chunks(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"bf16", "chunk_rows"})->Unit(benchmark::kMillisecond)->UseRealTime();
  bench->ArgsProduct({{0, 1}, {0}});
}

BENCHMARK(rms_norm_ours)->Apply(both_dtypes);
BENCHMARK(rms_norm_plain)->Apply(both_dtypes);
BENCHMARK(add_rms_norm_ours)->Apply(both_dtypes);
BENCHMARK(add_rms_norm_apart)->Apply(both_dtypes);
BENCHMARK(rotary_ours)->Apply(both_dtypes);
BENCHMARK(rotary_plain)->Apply(both_dtypes);
BENCHMARK(swiglu_ours)->Apply(both_dtypes);
BENCHMARK(swiglu_plain)->Apply(both_dtypes);
BENCHMARK(gelu_tanh_ours)->Apply(both_dtypes);
BENCHMARK(gelu_tanh_plain)->Apply(both_dtypes);
BENCHMARK(linear_ours)->Apply(without_chunks);
BENCHMARK(linear_plain)->Apply(without_chunks);
void with_ranks(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"bf16", "rank"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  bench->ArgsProduct({{0, 1}, {8, 64}});
}
BENCHMARK(low_rank_linear_ours)->Apply(with_ranks);
BENCHMARK(low_rank_linear_apart)->Apply(with_ranks);
BENCHMARK(linear_cross_entropy_ours)->Apply(with_chunks);
BENCHMARK(linear_cross_entropy_plain)->Apply(without_chunks);
BENCHMARK(adamw_ours)
    ->ArgNames({"bf16", "stochastic"})
    ->Args({0, 0})
    ->Args({1, 0})
    ->Args({1, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(adamw8bit_ours)
    ->ArgNames({"bf16", "stochastic"})
    ->Args({0, 0})
    ->Args({1, 0})
    ->Args({1, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(adamw_libtorch)
    ->ArgName("bf16")
    ->Arg(0)
    ->Arg(1)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(product_dense)->Apply(with_shapes);
BENCHMARK(product_quantised<WeightFormat::nf4>)->Apply(with_shapes);
BENCHMARK(product_quantised<WeightFormat::nf4_double>)->Apply(with_shapes);
BENCHMARK(product_quantised<WeightFormat::int8>)->Apply(with_shapes);
BENCHMARK(quantise_weight)->DenseRange(1, 4)->ArgName("format")->UseRealTime();
BENCHMARK(tensor_loop)->ArgName("MiB")->Arg(1)->Arg(4)->Arg(16)->Arg(64)->UseRealTime();

}  // namespace
}  // namespace tessera::kernels

int main(int argc, char** argv) {
  const char* allocator = std::getenv("TESSERA_BENCH_ALLOCATOR");  // glibc, or caching unless set
  if (allocator == nullptr || std::string_view(allocator) != "glibc") {
    tessera::kernels::install_caching_allocator();
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
