#include "tessera/nn/initialise.h"

#include <cmath>
#include <numbers>

namespace tessera::nn {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

/// Calls number(bits) for the 64 bits of each element of `out`, which becomes what that gives.
void fill_from_bits(const torch::Tensor& out, std::string_view name, int64_t seed, int64_t begin,
                    const auto& number) {
  TORCH_INTERNAL_ASSERT(out.is_contiguous() && out.scalar_type() == torch::kFloat32 &&
                        out.is_cpu());
  const uint64_t key = name_key(name) ^ (static_cast<uint64_t>(seed) * kGolden);
  float* const values = out.mutable_data_ptr<float>();
  const int64_t count = out.numel();
  for (int64_t i = 0; i < count; ++i) {
    uint64_t z = key + static_cast<uint64_t>(begin + i + 1) * kGolden;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    values[i] = static_cast<float>(number(z ^ (z >> 31)));
  }
}

}  // namespace

uint64_t name_key(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const unsigned char byte : name) hash = (hash ^ byte) * 0x100000001B3;
  return hash;
}

void fill_portable(torch::Tensor out, std::string_view name, int64_t seed, double std,
                   int64_t begin) {
  const double step = std * std::sqrt(3.0) / static_cast<double>(1 << 23);
  fill_from_bits(out, name, seed, begin, [step](uint64_t bits) {
    return static_cast<double>(static_cast<int64_t>(bits >> 40) - (1 << 23)) * step;
  });
}

void fill_portable_normal(torch::Tensor out, std::string_view name, int64_t seed, double std,
                          int64_t begin) {
  constexpr double kRange = 4294967296.0;  // 2^32
  fill_from_bits(out, name, seed, begin, [std](uint64_t bits) {
    const double u = (static_cast<double>(bits >> 32) + 0.5) / kRange;
    const double turn = static_cast<double>(bits & 0xFFFFFFFF) / kRange;
    return std * std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * turn);
  });
}

}  // namespace tessera::nn
