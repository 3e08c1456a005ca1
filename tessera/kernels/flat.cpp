#include "tessera/kernels/flat.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/kernels/cpu/flat_kernel.h"
#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/cpu/parallel.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kBlock = 4096;
constexpr int64_t kGrain = 16384;

const FlatTable& table() {
#if defined(__x86_64__)
  static constexpr const FlatTable* kTables[4] = {&generic::flat_table, &avx2::flat_table,
                                                  &avx512::flat_table, &avx512_bf16::flat_table};
  return table_in_use(kTables);
#else
  return generic::flat_table;
#endif
}

/// splitmix64's output function (Steele et al., OOPSLA 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

RandomBits bits_of(const StochasticRounding& rounding) {
  const uint64_t key = mixed(mixed(rounding.seed) ^ static_cast<uint64_t>(rounding.step));
  return {.key = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
          .first = rounding.first_position};
}

/// Place of the dtype of `x` in the tables: 0 is float32, 1 bfloat16.
int index_of(const at::Tensor& x, int64_t length) {
  TORCH_INTERNAL_ASSERT(x.is_cpu() && x.is_contiguous() && x.numel() == length);
  TORCH_INTERNAL_ASSERT(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
  return x.scalar_type() == at::kBFloat16 ? 1 : 0;
}

}  // namespace

void adamw(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, const AdamWOptions& options, const at::Tensor& copy) {
  const int64_t length = parameter.numel();
  const int state = index_of(exp_avg, length);
  TORCH_INTERNAL_ASSERT(index_of(exp_avg_sq, length) == state);
  TORCH_INTERNAL_ASSERT(!copy.defined() || index_of(copy, length) == 1);
  const auto run = table().adamw[index_of(parameter, length)][index_of(gradient, length)][state];
  const auto step = static_cast<double>(options.step);
  const double correction = 1 - std::pow(options.beta1, step);
  const double correction_sq = 1 - std::pow(options.beta2, step);
  const AdamWArgs args{.parameter = parameter.data_ptr(),
                       .gradient = gradient.const_data_ptr(),
                       .exp_avg = exp_avg.data_ptr(),
                       .exp_avg_sq = exp_avg_sq.data_ptr(),
                       .copy = copy.defined() ? copy.data_ptr() : nullptr,
                       .gradient_scale = static_cast<float>(options.gradient_scale),
                       .keep = static_cast<float>(1 - options.learning_rate * options.weight_decay),
                       .blend = static_cast<float>(1 - options.beta1),
                       .blend_sq = static_cast<float>(1 - options.beta2),
                       .beta_sq = static_cast<float>(options.beta2),
                       .step_size = static_cast<float>(options.learning_rate / correction),
                       .reciprocal_root = static_cast<float>(1 / std::sqrt(correction_sq)),
                       .eps = static_cast<float>(options.eps),
                       .stochastic = options.rounding.has_value(),
                       .bits = bits_of(options.rounding.value_or(StochasticRounding{}))};
  parallel_for(0, length, kGrain, [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void round_stochastically(const at::Tensor& from, const at::Tensor& to,
                          const StochasticRounding& rounding) {
  TORCH_INTERNAL_ASSERT(index_of(from, to.numel()) == 0 && index_of(to, from.numel()) == 1);
  const RandomBits bits = bits_of(rounding);
  parallel_for(0, to.numel(), kGrain, [&](int64_t begin, int64_t end) {
    table().round_stochastically(from.const_data_ptr<float>(), to.data_ptr(), bits, begin, end);
  });
}

uint32_t drop_threshold(double probability) {
  return static_cast<uint32_t>(std::min(std::round(probability * 0x1p32), 0x1p32 - 1));
}

std::array<uint32_t, 2> random_key(const DropoutKey& key) {
  const uint64_t mixed_key =
      mixed(mixed(mixed(key.seed) ^ static_cast<uint64_t>(key.step)) ^ key.layer);
  return {static_cast<uint32_t>(mixed_key), static_cast<uint32_t>(mixed_key >> 32)};
}

void drop(const at::Tensor& from, const at::Tensor& to, double probability, const DropoutKey& key) {
  TORCH_INTERNAL_ASSERT(from.scalar_type() == to.scalar_type());
  const auto run = table().drop[index_of(from, to.numel())];
  TORCH_INTERNAL_ASSERT(index_of(to, from.numel()) >= 0);
  const auto halves = random_key(key);
  const DropArgs args{.x = from.const_data_ptr(),
                      .y = to.data_ptr(),
                      .threshold = drop_threshold(probability),
                      .scale = static_cast<float>(1 / (1 - probability)),
                      .bits = {.key = {halves[0], halves[1]}, .first = key.first_position}};
  parallel_for(0, to.numel(), kGrain, [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

double sum_of_squares(const at::Tensor& values) {
  TORCH_INTERNAL_ASSERT(values.is_cpu() && values.is_contiguous());
  const auto dtype = values.scalar_type();
  TORCH_INTERNAL_ASSERT(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf);
  const auto squares = dtype == at::kFloat      ? table().squares_of_float
                       : dtype == at::kBFloat16 ? table().squares_of_bfloat16
                                                : table().squares_of_half;
  const auto* data = static_cast<const char*>(values.const_data_ptr());
  const int64_t count = values.numel(), bytes = values.element_size();
  const int64_t num_blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(num_blocks));
  parallel_for(0, num_blocks, 16, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock;
      sums[static_cast<size_t>(block)] =
          squares(data + first * bytes, std::min(kBlock, count - first));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace tessera::kernels
