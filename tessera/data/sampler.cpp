#include "tessera/data/sampler.h"

#include <bit>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr int kRounds = 8;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

/// splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014).
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

uint64_t low_bits(uint64_t value, int bits) { return value & ((uint64_t{1} << bits) - 1); }

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  if (options.num_samples < 1)
    user_error("data: expected at least one sample, got {}", options.num_samples);
  const int bits = std::bit_width(static_cast<uint64_t>(options.num_samples) - 1);
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
}

int64_t Sampler::operator()(int64_t global_index) const {
  const int64_t n = options_.num_samples;
  auto value = static_cast<uint64_t>(global_index % n);
  if (!options_.shuffle) return static_cast<int64_t>(value);
  const uint64_t epoch_key =
      mix(mix(options_.seed + kGolden) + static_cast<uint64_t>(global_index / n) * kGolden);
  do {
    value = permute(value, epoch_key);
  } while (value >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(value);
}

uint64_t Sampler::permute(uint64_t value, uint64_t epoch_key) const {
  uint64_t left = value >> right_bits_;
  uint64_t right = low_bits(value, right_bits_);
  for (int round = 0; round < kRounds; round += 2) {
    // Each line can be undone by itself, whatever the widths: together they are a permutation.
    left ^=
        low_bits(mix(mix(epoch_key + static_cast<uint64_t>(round)) + right * kGolden), left_bits_);
    right ^= low_bits(mix(mix(epoch_key + static_cast<uint64_t>(round) + 1) + left * kGolden),
                      right_bits_);
  }
  return (left << right_bits_) | right;
}

}  // namespace tessera::data
