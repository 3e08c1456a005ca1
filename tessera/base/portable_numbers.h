// Numbers as a pure function of a name, a seed and a position: the same on every machine, in any order.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace tessera {

/// FNV-1a (Fowler, Noll and Vo) of a name, 64 bits: what tells one parameter's or layer's numbers
/// from another's.
constexpr uint64_t name_key(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char byte : name) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  return hash;
}

/// splitmix64 (Steele et al., OOPSLA 2014): element i is at position i + 1 of the stream keyed by the
/// name and the seed.
class PortableNumbers {
 public:
  PortableNumbers(std::string_view name, int64_t seed)
      : key_(name_key(name) ^ (static_cast<uint64_t>(seed) * kGolden)) {}

  uint64_t bits(int64_t element) const {
    uint64_t z = key_ + static_cast<uint64_t>(element + 1) * kGolden;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  /// A number drawn uniformly around 0, with standard deviation `std`.
  float uniform(int64_t element, double std) const {
    constexpr int64_t kHalf = 1 << 23;
    const double step = std * std::sqrt(3.0) / static_cast<double>(kHalf);
    return static_cast<float>(
        static_cast<double>(static_cast<int64_t>(bits(element) >> 40) - kHalf) * step);
  }

 private:
  static constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
  uint64_t key_;
};

}  // namespace tessera
