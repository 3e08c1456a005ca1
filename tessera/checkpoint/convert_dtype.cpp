#include "tessera/checkpoint/convert_dtype.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

// What follows has no branches, so that the loops over it become vector code. Magnitudes are
// compared as signed numbers, for which SSE2 has instructions.

constexpr uint32_t kAbs = 0x7fff'ffff, kInfinity = 0x7f80'0000;

uint32_t choose(bool is_first, uint32_t first, uint32_t second) {
  const uint32_t mask = -uint32_t{is_first};
  return (first & mask) | (second & ~mask);
}

bool less(uint32_t a, uint32_t b) { return static_cast<int32_t>(a) < static_cast<int32_t>(b); }

uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>(choose(less(kInfinity, bits & kAbs), quiet_nan, rounded));
}

float of_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

/// f16: 5 bits of exponent (bias 15), 10 of fraction; f32 has 8 (bias 127) and 23.
constexpr uint32_t kRebias = (127 - 15) << 23;
constexpr uint32_t kSmallestNormalF16 = (127 - 14) << 23;  ///< 2^-14 as f32
constexpr uint32_t kBeyondF16 = (127 + 16) << 23;          ///< 2^16 as f32
constexpr uint32_t kInfinityF16 = 0x7c00;

uint16_t f16_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & kAbs;
  const uint32_t rounded = (magnitude - kRebias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t normal = choose(less(magnitude, kBeyondF16), rounded, kInfinityF16);
  // The last bit of 0.5f is 2^-24, the smallest f16: the addition rounds there.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5F);
  const uint32_t number = choose(less(magnitude, kSmallestNormalF16), subnormal, normal);
  const uint32_t quiet_nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  return static_cast<uint16_t>(choose(less(kInfinity, magnitude), quiet_nan, number) |
                               (bits >> 16 & 0x8000));
}

float of_f16(uint16_t bits) {
  const uint32_t magnitude = (bits & 0x7fffU) << 13;
  const uint32_t normal = magnitude + kRebias;
  const uint32_t special = magnitude + 2 * kRebias;  // infinity, NaN: all bits of the exponent
  // 1.fraction * 2^-14 less 2^-14 is 0.fraction * 2^-14.
  const float subnormal = std::bit_cast<float>(magnitude + kSmallestNormalF16) -
                          std::bit_cast<float>(kSmallestNormalF16);
  const uint32_t exponent = bits & kInfinityF16;
  const uint32_t finite = choose(exponent == 0, std::bit_cast<uint32_t>(subnormal), normal);
  return std::bit_cast<float>(choose(exponent == kInfinityF16, special, finite) | (bits & 0x8000U)
                                                                                      << 16);
}

/// f32 rounded to odd: towards zero, with the last bit set if anything was lost. A second rounding,
/// to 16 bits, then gives what one rounding would.
float to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  bits -= uint32_t{std::fabs(static_cast<double>(nearest)) > std::fabs(value)};
  bits |= uint32_t{static_cast<double>(nearest) != value};
  return std::bit_cast<float>(bits);
}

struct F64 {
  using Stored = double;
};
struct F32 {
  using Stored = float;
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
};
struct F16 {
  using Stored = uint16_t;
  static float widen(uint16_t bits) { return of_f16(bits); }
  static uint16_t narrow(float value) { return f16_of(value); }
};
struct BF16 {
  using Stored = uint16_t;
  static float widen(uint16_t bits) { return of_bf16(bits); }
  static uint16_t narrow(float value) { return bf16_of(value); }
};

template <typename From, typename To>
typename To::Stored convert(typename From::Stored value) {
  constexpr bool is_from_f64 = std::is_same_v<From, F64>, is_to_f64 = std::is_same_v<To, F64>;
  if constexpr (is_from_f64 && is_to_f64) {
    return value;
  } else if constexpr (is_from_f64) {
    return To::narrow(std::is_same_v<To, F32> ? static_cast<float>(value) : to_odd(value));
  } else if constexpr (is_to_f64) {
    return From::widen(value);
  } else {
    return To::narrow(From::widen(value));
  }
}

template <typename From, typename To>
void convert_all(const std::byte* source, std::byte* destination, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    typename From::Stored value;
    std::memcpy(&value, source + i * sizeof(value), sizeof(value));
    const auto converted = convert<From, To>(value);
    std::memcpy(destination + i * sizeof(converted), &converted, sizeof(converted));
  }
}

template <typename Function>
void with_float(DType dtype, const Function& function) {
  if (dtype == DType::f64) return function(F64{});
  if (dtype == DType::f32) return function(F32{});
  if (dtype == DType::f16) return function(F16{});
  return function(BF16{});
}

}  // namespace

bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

bool is_convertible(DType from, DType to) { return from == to || (is_float(from) && is_float(to)); }

void convert_values(std::span<const std::byte> source, DType from, std::span<std::byte> destination,
                    DType to) {
  const auto count = source.size() / static_cast<size_t>(dtype_bytes(from));
  assert(is_convertible(from, to));
  assert(destination.size() == count * static_cast<size_t>(dtype_bytes(to)));
  if (from == to) {
    std::ranges::copy(source, destination.begin());
    return;
  }
  with_float(from, [&](auto from_type) {
    with_float(to, [&](auto to_type) {
      convert_all<decltype(from_type), decltype(to_type)>(source.data(), destination.data(), count);
    });
  });
}

void convert_tensor(const std::string& name, std::span<const std::byte> source, DType from,
                    std::span<std::byte> destination, DType to) {
  convert_values(source, from, destination, to);
  if (to != DType::f16 || from == DType::f16) return;
  const auto size = static_cast<size_t>(dtype_bytes(from));
  for (size_t i = 0; 2 * i < destination.size(); ++i) {
    uint16_t code = 0;
    std::memcpy(&code, destination.data() + 2 * i, 2);
    if ((code & 0x7fff) != 0x7c00) continue;  // not infinity
    double number = 0;
    convert_values(source.subspan(i * size, size), from,
                   std::as_writable_bytes(std::span(&number, 1)), DType::f64);
    if (std::isfinite(number)) {
      user_error("{}: holds {:g}, which f16 cannot; choose bf16, or 32 bits", name, number);
    }
  }
}

}  // namespace tessera::checkpoint
