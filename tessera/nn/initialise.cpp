#include "tessera/nn/initialise.h"

#include <cmath>

namespace tessera::nn {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

}  // namespace

uint64_t name_key(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const unsigned char byte : name) hash = (hash ^ byte) * 0x100000001B3;
  return hash;
}

void fill_portable(torch::Tensor out, std::string_view name, int64_t seed, double std,
                   int64_t begin) {
  TORCH_INTERNAL_ASSERT(out.is_contiguous() && out.scalar_type() == torch::kFloat32 &&
                        out.is_cpu());
  const uint64_t key = name_key(name) ^ (static_cast<uint64_t>(seed) * kGolden);
  const double step = std * std::sqrt(3.0) / static_cast<double>(1 << 23);
  float* const values = out.mutable_data_ptr<float>();
  const int64_t count = out.numel();
  for (int64_t i = 0; i < count; ++i) {
    uint64_t z = key + static_cast<uint64_t>(begin + i + 1) * kGolden;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z = z ^ (z >> 31);
    values[i] =
        static_cast<float>(static_cast<double>(static_cast<int64_t>(z >> 40) - (1 << 23)) * step);
  }
}

}  // namespace tessera::nn
