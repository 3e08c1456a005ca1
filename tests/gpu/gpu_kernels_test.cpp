// What the operators' own tests, which this program runs with a GPU's kernels too, do not ask of a
// GPU's: any order of threads, addresses that are no multiple of 16 bytes, few launches, no stop of
// the host, the bits of the CPU's kernels.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "tessera/kernels/activation.h"
#include "tessera/kernels/cpu/fused.h"
#include "tessera/kernels/dropout.h"
#include "tessera/kernels/flat.h"
#include "tessera/kernels/layer_norm.h"
#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/kernels/reference.h"
#include "tessera/kernels/rms_norm.h"
#include "tessera/kernels/rotary.h"
#include "tests/gpu/gpu_under_test.h"

namespace tessera::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

/// All tests of this program: operators of CPU tensors run the GPU's kernels.
class GpuKernels : public ::testing::Environment {
 public:
  void SetUp() override {
    if (const auto* why = testing::no_gpu()) GTEST_SKIP() << why;
    testing::prepare_memory();
    scope_.emplace(at::kCPU, &testing::gpu_kernels());
  }
  void TearDown() override {
    EXPECT_TRUE(!scope_ || testing::launches() != 0);
    scope_.reset();
  }

 private:
  std::optional<FusedKernelsScope> scope_;
};
const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new GpuKernels);

/// Contiguous, `offset` elements behind a multiple of 16 bytes.
at::Tensor at_offset(const at::Tensor& x, int64_t offset) {
  const auto space = at::zeros({x.numel() + offset}, x.options());
  auto view = space.narrow(0, offset, x.numel()).view(x.sizes());
  view.copy_(x);
  return view;
}

struct GpuCase {
  const char* name;
  std::function<at::Tensor(const Tensors&)> fused, plain;
  Tensors inputs;
  int launches;  ///< forward and backward
};

std::vector<GpuCase> operators(int64_t rows, int64_t dim) {
  at::manual_seed(4);
  const auto x = at::randn({rows, dim}), other = at::randn({rows, dim}), weight = at::randn({dim}),
             bias = at::randn({dim});
  const auto both = [](const std::tuple<at::Tensor, at::Tensor>& pair) {
    return at::cat({std::get<0>(pair), std::get<1>(pair)});
  };
  const auto [cos, sin] = rotary_tables(rows, dim);
  return {
      {"rms_norm",
       [](const Tensors& t) { return rms_norm(t[0], t[1], 1e-5); },
       [](const Tensors& t) { return rms_norm_reference(t[0], t[1], 1e-5); },
       {x, weight},
       3},
      {"add_rms_norm",
       [=](const Tensors& t) { return both(add_rms_norm(t[0], t[1], t[2], 1e-5)); },
       [=](const Tensors& t) { return both(add_rms_norm_reference(t[0], t[1], t[2], 1e-5)); },
       {x, other, weight},
       3},
      {"rms_norm_beside",
       [=](const Tensors& t) { return both(add_rms_norm(t[0], {}, t[1], 1e-5)); },
       [](const Tensors& t) {
         return at::cat({t[0], rms_norm_reference(t[0], t[1], 1e-5)});
       },
       {x, weight},
       3},
      {"layer_norm",
       [](const Tensors& t) { return layer_norm(t[0], t[1], t[2], 1e-5); },
       [=](const Tensors& t) { return at::layer_norm(t[0], {dim}, t[1], t[2], 1e-5); },
       {x, weight, bias},
       3},
      {"swiglu",
       [](const Tensors& t) { return swiglu(t[0], t[1]); },
       [](const Tensors& t) { return swiglu_reference(t[0], t[1]); },
       {x, other},
       2},
      {"clamped_swiglu",
       [](const Tensors& t) {
         return clamped_swiglu(t[0], t[1], {.scale = 1.702F, .limit = 0.75F});
       },
       [](const Tensors& t) {
         return clamped_swiglu_reference(t[0], t[1], {.scale = 1.702F, .limit = 0.75F});
       },
       {x, other},
       2},
      {"gelu_tanh",
       [](const Tensors& t) { return gelu_tanh(t[0]); },
       [](const Tensors& t) { return gelu_tanh_reference(t[0]); },
       {x},
       2},
      {"rotary",
       [=, cos = cos, sin = sin](const Tensors& t) {
         return rotary(t[0].view({1, rows, 1, dim}), cos, sin);
       },
       [=, cos = cos, sin = sin](const Tensors& t) {
         return rotary_reference(t[0].view({1, rows, 1, dim}), cos, sin);
       },
       {x},
       2},
      {"dropout",
       [](const Tensors& t) { return dropout(t[0], 0.3, {.seed = 3}); },
       [](const Tensors& t) { return dropout_reference(t[0], 0.3, {.seed = 3}); },
       {x},
       2},
  };
}

/// The result and the gradient of every input.
Tensors run_at(const std::function<at::Tensor(const Tensors&)>& op, const Tensors& inputs,
               int64_t offset = 0) {
  Tensors leaves;
  for (const auto& x : inputs) leaves.push_back(at_offset(x, offset).detach().requires_grad_());
  const auto y = op(leaves);
  Tensors out = {y.detach()};
  const auto grad = at_offset(y.detach().sin(), offset);
  for (const auto& g : torch::autograd::grad({y}, leaves, {grad})) out.push_back(g);
  return out;
}

double error_of(const at::Tensor& got, const at::Tensor& want) {
  const auto g = got.to(at::kDouble), w = want.to(at::kDouble);
  return ((g - w).norm() / w.norm().clamp_min(1e-30)).item<double>();
}

TEST(GpuKernels, MisalignedRowsAndEveryWidth) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t dim : {6, 8, 24, 36, 1032}) {
      for (const auto& op : operators(5, dim)) {
        for (const int64_t offset : {0, 1, 4}) {
          SCOPED_TRACE(fmt::format("{} {} +{}", op.name, dim, offset));
          Tensors inputs;
          for (const auto& x : op.inputs) inputs.push_back(x.to(dtype));
          const auto got = run_at(op.fused, inputs, offset), want = run_at(op.plain, inputs);
          for (size_t i = 0; i < got.size(); ++i) {
            const double bound = dtype == at::kFloat ? 2e-6 : dtype == at::kHalf ? 3e-3 : 2e-2;
            EXPECT_LE(error_of(got[i], want[i]), bound) << i;
          }
        }
      }
    }
  }
}

// More columns than the threads of a block hold sums for.
TEST(GpuKernels, VeryWideRows) {
  for (const int64_t dim : {8200, 20000}) {
    for (const auto& op : operators(3, dim)) {
      SCOPED_TRACE(fmt::format("{} {}", op.name, dim));
      const auto got = run_at(op.fused, op.inputs), want = run_at(op.plain, op.inputs);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(error_of(got[i], want[i]), 4e-6) << i;
    }
  }
}

TEST(GpuKernels, SameBitsInEveryOrderOfThreads) {
  for (const auto& op : operators(500, 72)) {
    SCOPED_TRACE(op.name);
    testing::set_order(0);
    const auto want = run_at(op.fused, op.inputs);
    for (const uint64_t order : {1, 2, 3}) {
      testing::set_order(order);
      const auto got = run_at(op.fused, op.inputs);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
    }
  }
}

TEST(GpuKernels, FewLaunches) {
  if (!testing::launches()) GTEST_SKIP() << "a GPU does not count them";
  for (const auto& op : operators(5, 64)) {
    const auto before = *testing::launches();
    run_at(op.fused, op.inputs);
    EXPECT_EQ(*testing::launches() - before, op.launches) << op.name;
  }
}

/// Losses and gradient of logits, by a table's kernel.
Tensors losses_of(const FusedKernels& kernels, const at::Tensor& logits, const at::Tensor& targets,
                  at::ScalarType dtype) {
  const int64_t rows = logits.size(0);
  const auto losses = at::empty({rows}, at::kDouble), scales = at::full({rows}, 0.5f);
  const auto work = logits.clone(), gradient = at::empty(logits.sizes(), dtype);
  kernels.cross_entropy({.logits = work.data_ptr<float>(),
                         .gradient = gradient.data_ptr(),
                         .targets = targets.const_data_ptr<int64_t>(),
                         .losses = losses.data_ptr<double>(),
                         .scales = scales.const_data_ptr<float>(),
                         .rows = rows,
                         .vocab = logits.size(1),
                         .ignore_index = -100,
                         .type = element_of(dtype)});
  return {losses, gradient};
}

TEST(GpuKernels, SumsOfTwoTypesAreRoundedOnce) {
  for (const int64_t count : {1, 7, 64, 4099}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      for (const int64_t first : {0, 1}) {  // the second is at no multiple of 16 bytes
        const auto from = at::randn({count + first}).slice(0, first);
        const auto sum = at::randn({count + first}).to(dtype).slice(0, first);
        const auto want = (sum.to(at::kFloat) + from).to(dtype);
        testing::gpu_kernels().add({.to = sum.data_ptr(),
                                    .from = from.const_data_ptr<float>(),
                                    .count = count,
                                    .type = element_of(dtype)});
        EXPECT_TRUE(at::equal(sum, want)) << count << " " << dtype;
      }
    }
  }
}

TEST(GpuKernels, LossesWithMaskedClassesAndNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int64_t vocab : {5, 64, 9000}) {
    auto logits = at::randn({6, vocab}) * 10;
    logits[1].slice(0, 2, vocab) = -kInfinity;  // whole threads see nothing but -inf
    logits[2][vocab - 1] = std::nanf("");
    logits[3][0] = -kInfinity;  // of the target
    logits[4][1] = 1e30;
    const auto targets = at::tensor({1, 1, 0, 0, 1, -100}, at::kLong);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto got = losses_of(testing::gpu_kernels(), logits, targets, dtype);
      const auto want = losses_of(cpu_kernels(), logits, targets, dtype);
      EXPECT_TRUE(at::allclose(got[0], want[0], 1e-6, 1e-6, /*equal_nan=*/true)) << got[0];
      EXPECT_TRUE(std::isnan(got[0][2].item<double>()));
      EXPECT_TRUE(std::isinf(got[0][3].item<double>()));
      EXPECT_TRUE(at::allclose(got[1].to(at::kFloat), want[1].to(at::kFloat), 1e-2, 1e-6,
                               /*equal_nan=*/true))
          << vocab;
    }
  }
}

// More logits than a block keeps between its two passes, whole vectors and not, and misaligned.
TEST(GpuKernels, LossesOfLongRows) {
  at::manual_seed(7);
  for (const int64_t vocab : {16'384, 40'003, 40'004}) {
    auto logits = at::randn({4, vocab}) * 4;
    logits[1].slice(0, 100, vocab - 1) = -std::numeric_limits<float>::infinity();
    logits[2][vocab - 2] = 40;
    const auto targets = at::tensor({vocab - 1, vocab - 1, vocab - 2, int64_t{-100}}, at::kLong);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto want = losses_of(cpu_kernels(), logits, targets, dtype);
      Tensors first;
      for (const uint64_t order : {1, 2}) {
        testing::set_order(order);
        const auto got = losses_of(testing::gpu_kernels(), logits, targets, dtype);
        EXPECT_TRUE(at::allclose(got[0], want[0], 1e-6, 1e-6)) << vocab << got[0] << want[0];
        EXPECT_LE(error_of(got[1], want[1]), dtype == at::kFloat ? 2e-6 : 4e-3) << vocab;
        if (first.empty()) first = got;
        for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], first[i])) << i;
      }
    }
  }
}

struct AdamWState {
  at::Tensor parameter, gradient, exp_avg, exp_avg_sq, copy;
};

TEST(GpuKernels, AdamWRoundsAsTheCpuDoes) {
  constexpr int64_t kCount = 10'007;
  AdamWOptions options{.learning_rate = 1e-2, .weight_decay = 0.1, .step = 3};
  options.rounding = StochasticRounding{.seed = 5, .step = 3, .first_position = 12345};
  at::manual_seed(6);
  const AdamWState start = {at::randn({kCount}).to(at::kBFloat16), at::randn({kCount}),
                            at::randn({kCount}).to(at::kBFloat16),
                            at::rand({kCount}).to(at::kBFloat16),
                            at::empty({kCount}, at::kBFloat16)};
  const auto updated = [&](const FusedKernels& kernels) {
    const FusedKernelsScope scope(at::kCPU, &kernels);
    AdamWState s = {start.parameter.clone(), start.gradient, start.exp_avg.clone(),
                    start.exp_avg_sq.clone(), start.copy.clone()};
    adamw(s.parameter, s.gradient, s.exp_avg, s.exp_avg_sq, options, s.copy);
    return Tensors{s.parameter, s.exp_avg, s.exp_avg_sq, s.copy};
  };
  const auto got = updated(testing::gpu_kernels()), want = updated(cpu_kernels());
  for (size_t i = 0; i < got.size(); ++i) {
    // A last bit of float32 that differs (fused multiply-add) moves a rounding once in a while.
    EXPECT_LE((got[i] != want[i]).sum().item<int64_t>(), 3) << i;
    EXPECT_TRUE(at::allclose(got[i].to(at::kFloat), want[i].to(at::kFloat), 1e-2)) << i;
  }
}

TEST(GpuKernels, StochasticRoundingIsTheCpus) {
  const auto x =
      at::cat({at::randn({5'003}), at::randn({5'003}) * 1e-6, at::tensor({1e6, -INFINITY})})
          .to(at::kFloat);
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat8_e4m3fn}) {
    // Addresses that allow whole vectors, and others.
    for (const int64_t first : {0, 1}) {
      const auto from = x.slice(0, first);
      const auto rounded = [&](const FusedKernels& kernels) {
        const FusedKernelsScope scope(at::kCPU, &kernels);
        auto y = at::empty(from.sizes(), type);
        round_stochastically(from, y, {.seed = 5, .step = 3, .first_position = 12345});
        return y.to(at::kFloat);
      };
      EXPECT_TRUE(at::equal(rounded(testing::gpu_kernels()), rounded(cpu_kernels()))) << type;
    }
  }
}

TEST(GpuKernels, FoundInfAndFactorOnTheDevice) {
  for (const auto* kernels : {&testing::gpu_kernels(), &cpu_kernels()}) {
    const FusedKernelsScope scope(at::kCPU, kernels);
    const auto parameter = at::randn({37}), gradient = at::randn({37});
    const auto updated = [&](const AdamWOptions& options, const at::Tensor& by) {
      AdamWState s = {parameter.clone(), by, at::zeros({37}), at::zeros({37}), {}};
      adamw(s.parameter, s.gradient, s.exp_avg, s.exp_avg_sq, options);
      return at::cat({s.parameter, s.exp_avg, s.exp_avg_sq});
    };
    const auto zeros = at::zeros({37});
    EXPECT_TRUE(at::equal(updated({.found_inf = at::ones({1})}, gradient * NAN),
                          at::cat({parameter, zeros, zeros})));
    const auto plain = updated({}, gradient * 0.25);
    EXPECT_TRUE(at::equal(
        updated({.found_inf = at::zeros({1}), .gradient_factor = at::full({1}, 0.25)}, gradient),
        plain));
    EXPECT_FALSE(at::equal(updated({}, gradient), plain));
  }
}

TEST(GpuKernels, DropsTheSameElementsAsTheCpu) {
  // Rows of whole vectors and of others, or one after another; positions that go on beyond 16 and 32 bits.
  for (const int64_t row : {0, 24, 21}) {
    for (const int64_t first : {int64_t{1} << 32, int64_t{3} << 16, int64_t{1} << 16}) {
      const DropoutKey key{.seed = 2,
                           .step = 7,
                           .layer = 3,
                           .first_position = first - 51,
                           .row = row,
                           .row_stride = row == 0 ? 0 : 40};
      const auto x = at::randn({7, 24 * 21});
      const auto dropped = [&](const FusedKernels& kernels) {
        const FusedKernelsScope scope(at::kCPU, &kernels);
        return dropout(x, 0.4, key);
      };
      EXPECT_TRUE(at::equal(dropped(testing::gpu_kernels()), dropped(cpu_kernels()))) << row;
    }
  }
}

TEST(GpuKernels, NormOfManyElementsAndOfNone) {
  at::manual_seed(8);
  for (const int64_t count : {0, 1, 7, 100'003}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t offset : {0, 1}) {
        const auto x = at_offset(at::randn({count}).to(dtype), offset);
        const double want = x.to(at::kDouble).square().sum().item<double>();
        EXPECT_NEAR(sum_of_squares(x).item<double>(), want, 1e-12 * want) << count << dtype;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels
