#include "tessera/nn/initialise.h"

#include <cmath>
#include <numbers>

#include "tessera/base/portable_numbers.h"
#include "tessera/kernels/cpu/parallel.h"

namespace tessera::nn {
namespace {

/// Calls number(element) for each element of `out`, which becomes what that gives.
void fill_each(const torch::Tensor& out, int64_t begin, const auto& number) {
  TORCH_INTERNAL_ASSERT(out.is_contiguous() && out.scalar_type() == torch::kFloat32 &&
                        out.is_cpu());
  float* const values = out.mutable_data_ptr<float>();
  constexpr int64_t kGrain = 1 << 16;
  kernels::parallel_for(0, out.numel(), kGrain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) values[i] = number(begin + i);
  });
}

}  // namespace

void fill_portable(torch::Tensor out, std::string_view name, int64_t seed, double std,
                   int64_t begin) {
  const PortableNumbers numbers(name, seed);
  fill_each(out, begin, [&](int64_t element) { return numbers.uniform(element, std); });
}

void fill_portable_normal(torch::Tensor out, std::string_view name, int64_t seed, double std,
                          int64_t begin) {
  constexpr double kRange = 4294967296.0;  // 2^32
  const PortableNumbers numbers(name, seed);
  fill_each(out, begin, [&](int64_t element) {
    const uint64_t bits = numbers.bits(element);
    const double u = (static_cast<double>(bits >> 32) + 0.5) / kRange;
    const double turn = static_cast<double>(bits & 0xFFFFFFFF) / kRange;
    return static_cast<float>(std * std::sqrt(-2 * std::log(u)) *
                              std::cos(2 * std::numbers::pi * turn));
  });
}

}  // namespace tessera::nn
