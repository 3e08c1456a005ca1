// Each kernel of a GPU beside a copy of as many bytes: the share of the memory's speed that it reaches. One JSON object a line.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tessera/kernels/activation.h"
#include "tessera/kernels/dropout.h"
#include "tessera/kernels/flat.h"
#include "tessera/kernels/fp8_codes.h"
#include "tessera/kernels/fused.h"
#include "tessera/kernels/layer_norm.h"
#include "tessera/kernels/rms_norm.h"
#include "tessera/kernels/rotary.h"

namespace tessera::kernels {
namespace {

/// Seconds of one run: the median of some, behind a few that warm up; several at a time, so that the host is ahead.
double seconds_of(const std::function<void()>& run) {
  constexpr int kWarmUps = 2, kRounds = 7, kRepeats = 8;
  cudaEvent_t start, end;
  TORCH_CHECK(cudaEventCreate(&start) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess);
  std::vector<float> milliseconds;
  for (int i = 0; i < kWarmUps + kRounds; ++i) {
    TORCH_CHECK(cudaEventRecord(start) == cudaSuccess);
    for (int k = 0; k < kRepeats; ++k) run();
    TORCH_CHECK(cudaEventRecord(end) == cudaSuccess && cudaEventSynchronize(end) == cudaSuccess);
    float took = 0;
    TORCH_CHECK(cudaEventElapsedTime(&took, start, end) == cudaSuccess);
    if (i >= kWarmUps) milliseconds.push_back(took / kRepeats);
  }
  cudaEventDestroy(start), cudaEventDestroy(end);
  std::ranges::nth_element(milliseconds, milliseconds.begin() + kRounds / 2);
  return milliseconds[kRounds / 2] / 1e3;
}

/// Bytes a second, read and written.
double copy_speed() {
  const auto from = at::zeros({int64_t{1} << 28}, at::device(at::kCUDA).dtype(at::kFloat));
  auto to = at::empty_like(from);
  return 2 * static_cast<double>(from.nbytes()) / seconds_of([&] { to.copy_(from); });
}

class Report {
 public:
  explicit Report(double copy) : copy_(copy) {}

  /// `bytes`: the fewest that can be read and written.
  void add(const std::string& kernel, double bytes, const std::function<void()>& run) const {
    const double speed = bytes / seconds_of(run);
    fmt::print(R"({{"kernel": "{}", "tb_per_s": {:.3f}, "of_copy": {:.3f}}})"
               "\n",
               kernel, speed / 1e12, speed / copy_);
    std::fflush(stdout);
  }

 private:
  double copy_;
};

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) {
  return at::randn(sizes, at::device(at::kCUDA).dtype(dtype));
}

double bytes_of(std::initializer_list<at::Tensor> tensors) {
  double bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

/// An operator's forward, and its backward alone.
void both_ways(const Report& report, const std::string& name, std::vector<at::Tensor> inputs,
               double forward_bytes, double backward_bytes,
               const std::function<at::Tensor(const std::vector<at::Tensor>&)>& op) {
  {
    const at::AutoGradMode without_graph(false);
    report.add(name, forward_bytes, [&] { op(inputs); });
  }
  for (auto& x : inputs) x.requires_grad_();
  const auto y = op(inputs);
  const auto grad = at::randn_like(y);
  report.add(name + " backward", backward_bytes,
             [&] { torch::autograd::grad({y}, inputs, {grad}, /*retain_graph=*/true); });
}

void norms_and_activations(const Report& report, int64_t rows, int64_t dim, int64_t inner) {
  const auto x = random({rows, dim}), weight = random({dim}), bias = random({dim});
  const double one = bytes_of({x});
  const auto at_dim = fmt::format(" {}x{}", rows, dim);
  both_ways(report, "rms_norm" + at_dim, {x, weight}, 2 * one, 3 * one,
            [](const auto& t) { return rms_norm(t[0], t[1], 1e-5); });
  both_ways(report, "layer_norm" + at_dim, {x, weight, bias}, 2 * one, 3 * one,
            [](const auto& t) { return layer_norm(t[0], t[1], t[2], 1e-5); });
  both_ways(report, "dropout" + at_dim, {x}, 2 * one, 2 * one,
            [](const auto& t) { return dropout(t[0], 0.1, {.seed = 1}); });
  const auto gate = random({rows, inner}), up = random({rows, inner});
  const double wide = bytes_of({gate});
  const auto at_inner = fmt::format(" {}x{}", rows, inner);
  both_ways(report, "swiglu" + at_inner, {gate, up}, 3 * wide, 5 * wide,
            [](const auto& t) { return swiglu(t[0], t[1]); });
  both_ways(report, "gelu" + at_inner, {gate}, 2 * wide, 3 * wide,
            [](const auto& t) { return gelu_tanh(t[0]); });
  const int64_t heads = dim / 128;
  const auto [cos, sin] = rotary_tables(4096, 128);
  const auto on_device = [](const at::Tensor& table) { return table.to(at::kCUDA); };
  both_ways(report, "rotary" + at_dim, {x.view({rows / 4096, 4096, heads, 128})}, 2 * one, 2 * one,
            [cos = on_device(cos), sin = on_device(sin)](const auto& t) {
              return rotary(t[0], cos, sin);
            });
  report.add("sum_of_rows" + at_dim, one, [&] { sum_of_rows(x); });
}

void cross_entropy(const Report& report, int64_t rows, int64_t vocab) {
  const auto logits = random({rows, vocab}, at::kFloat);
  auto gradient = at::empty({rows, vocab}, logits.options().dtype(at::kBFloat16));
  const auto targets = at::zeros({rows}, logits.options().dtype(at::kLong));
  auto losses = at::empty({rows}, logits.options().dtype(at::kDouble));
  const auto scales = at::ones({rows}, logits.options());
  report.add(fmt::format("cross_entropy {}x{}", rows, vocab), bytes_of({logits, gradient}), [&] {
    fused_kernels(logits).cross_entropy({.logits = logits.data_ptr<float>(),
                                         .gradient = gradient.data_ptr(),
                                         .targets = targets.const_data_ptr<int64_t>(),
                                         .losses = losses.data_ptr<double>(),
                                         .scales = scales.const_data_ptr<float>(),
                                         .rows = rows,
                                         .vocab = vocab,
                                         .ignore_index = -100,
                                         .type = Element::bfloat16});
  });
}

void flat(const Report& report, int64_t count) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto p = random({count}, dtype), g = random({count}, dtype),
               m = at::zeros({count}, p.options()), v = at::zeros({count}, p.options());
    for (const bool stochastic : {false, true}) {
      AdamWOptions options{.learning_rate = 1e-3};
      if (stochastic) options.rounding = StochasticRounding{.seed = 1};
      report.add(fmt::format("adamw {}{}", c10::toString(dtype), stochastic ? " stochastic" : ""),
                 2 * bytes_of({p, m, v}) + bytes_of({g}), [&] { adamw(p, g, m, v, options); });
      if (dtype == at::kFloat) break;
    }
    report.add(fmt::format("sum_of_squares {}", c10::toString(dtype)), bytes_of({g}),
               [&] { sum_of_squares(g); });
  }
}

/// Codes as products ask for them, beside the fewest bytes: read once, and each order written once. Only where a row's scale
/// is all that is needed can they be read once.
void eight_bits(const Report& report, int64_t rows, int64_t columns) {
  const auto x = random({rows, columns});
  const double read = bytes_of({x}), written = read / 2;
  const auto add = [&](const char* what, double orders, const auto& run) {
    report.add(fmt::format("fp8_codes {}x{} {}", rows, columns, what), read + orders * written,
               run);
  };
  const Fp8Scaling by_row{.rows = 1, .rule = Fp8ScaleRule::power_of_two};
  const Fp8CodesOptions turned{.plain = false, .transposed = true};
  add("along rows", 1, [&] { fp8_codes(x, by_row, {}); });
  add("transposed, along columns", 1, [&] { fp8_codes(x, by_row.transposed(), turned); });
  add("both", 2, [&] { fp8_codes_of_both(x, by_row, {}); });
  add("of one scale", 1, [&] { fp8_codes(x, {}, {}); });
  add("transposed, of one scale", 1, [&] { fp8_codes(x, {}, turned); });
  add("both, of one scale", 2, [&] { fp8_codes(x, {}, {.transposed = true}); });
}

}  // namespace
}  // namespace tessera::kernels

int main() {
  if (c10::cuda::device_count() == 0) {
    fmt::print(stderr, "no GPU is at hand\n");
    return 2;
  }
  const double copy = tessera::kernels::copy_speed();
  fmt::print(R"({{"kernel": "copy", "tb_per_s": {:.3f}, "of_copy": 1}})"
             "\n",
             copy / 1e12);
  const tessera::kernels::Report report(copy);
  tessera::kernels::norms_and_activations(report, 16384, 4096, 14336);
  tessera::kernels::norms_and_activations(report, 32768, 1024, 4864);
  tessera::kernels::cross_entropy(report, 2048, 128256);
  tessera::kernels::flat(report, int64_t{1} << 28);
  tessera::kernels::eight_bits(report, 8192, 4096);
  tessera::kernels::eight_bits(report, 8192, 14336);
  tessera::kernels::eight_bits(report, 14336, 4096);
  tessera::kernels::eight_bits(report, 1024, 4096);
}
