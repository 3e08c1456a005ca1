#include "tessera/records/parquet/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "tessera/base/base64.h"
#include "tessera/base/utf8.h"

namespace tessera::records::parquet {
namespace {

constexpr int64_t kSecondsPerDay = 86'400;

template <typename T>
T number(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

int64_t integer(const Node& leaf, std::string_view bytes) {
  return leaf.physical == Physical::int32 ? number<int32_t>(bytes) : number<int64_t>(bytes);
}

Json real(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// IEEE 754's binary16.
double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(fraction + 1024, exponent - 25);
}

/// A day from 1970-01-01 in the Gregorian calendar, by years that begin in March (Hinnant,
/// "chrono-compatible low-level date algorithms").
std::string date(int64_t day) {
  constexpr int64_t kDaysOfEra = 146'097;  // 400 years
  day += 719'468;                          // from 0000-03-01
  const auto era = (day >= 0 ? day : day - kDaysOfEra + 1) / kDaysOfEra;
  const auto of_era = day - era * kDaysOfEra;
  const auto year = (of_era - of_era / 1460 + of_era / 36'524 - of_era / 146'096) / 365;
  const auto of_year = of_era - (365 * year + year / 4 - year / 100);
  const auto from_march = (5 * of_year + 2) / 153;
  const auto month = from_march < 10 ? from_march + 3 : from_march - 9;
  return fmt::format("{:04}-{:02}-{:02}", year + era * 400 + (month <= 2 ? 1 : 0), month,
                     of_year - (153 * from_march + 2) / 5 + 1);
}

std::string time_of_day(int64_t seconds, int64_t fraction, int64_t per_second) {
  auto text = fmt::format("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
  const int digits = per_second == 1000 ? 3 : per_second == 1'000'000 ? 6 : 9;
  if (fraction != 0) text += fmt::format(".{:0{}}", fraction, digits);
  return text;
}

/// Quotient and rest, which is not negative.
struct Division {
  int64_t quotient, rest;
};
Division divide(int64_t value, int64_t by) {
  const auto rest = (value % by + by) % by;
  return {value / by - (value % by < 0 ? 1 : 0), rest};
}

std::string timestamp(const Node& leaf, std::string_view bytes) {
  if (leaf.physical == Physical::int96) {  // nanoseconds of a day, which is counted from 4713 BC
    constexpr int64_t kNanos = 1'000'000'000, kJulianDayOf1970 = 2'440'588;
    const auto [seconds, fraction] = divide(number<int64_t>(bytes), kNanos);
    const auto [days, rest] = divide(seconds, kSecondsPerDay);
    const auto day = int64_t{number<int32_t>(bytes.substr(8))} - kJulianDayOf1970 + days;
    return date(day) + "T" + time_of_day(rest, fraction, kNanos);
  }
  const auto [seconds, fraction] = divide(number<int64_t>(bytes), leaf.per_second);
  const auto [day, rest] = divide(seconds, kSecondsPerDay);
  return date(day) + "T" + time_of_day(rest, fraction, leaf.per_second) + (leaf.utc ? "Z" : "");
}

/// Two's complement, the highest byte first, in decimal digits.
std::string digits_of(std::vector<uint8_t> bytes, bool& is_negative) {
  is_negative = !bytes.empty() && bytes[0] >= 0x80;
  if (is_negative) {
    int carry = 1;
    for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte) {
      const int sum = (~*byte & 0xFF) + carry;
      *byte = static_cast<uint8_t>(sum);
      carry = sum >> 8;
    }
  }
  std::string digits;
  while (std::ranges::any_of(bytes, [](uint8_t byte) { return byte != 0; })) {
    int rest = 0;
    for (auto& byte : bytes) {
      const int value = rest * 256 + byte;
      byte = static_cast<uint8_t>(value / 10);
      rest = value % 10;
    }
    digits += static_cast<char>('0' + rest);
  }
  std::ranges::reverse(digits);
  return digits;
}

std::string decimal(const Node& leaf, std::string_view bytes) {
  std::vector<uint8_t> big_endian(bytes.begin(), bytes.end());
  if (leaf.physical != Physical::bytes && leaf.physical != Physical::fixed)
    std::ranges::reverse(big_endian);
  bool is_negative = false;
  auto digits = digits_of(std::move(big_endian), is_negative);
  const auto scale = static_cast<size_t>(leaf.scale);
  if (digits.size() <= scale) digits.insert(0, scale + 1 - digits.size(), '0');
  if (scale > 0) digits.insert(digits.size() - scale, ".");
  return is_negative ? "-" + digits : digits;
}

std::string uuid(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<uint8_t>(bytes[i]));
  }
  return text;
}

Json without_logical(const Node& leaf, std::string_view bytes) {
  switch (leaf.physical) {
    case Physical::boolean:
      return bytes[0] != 0;
    case Physical::int32:
    case Physical::int64:
      return integer(leaf, bytes);
    case Physical::float32:
      return real(number<float>(bytes));
    case Physical::float64:
      return real(number<double>(bytes));
    case Physical::int96:
      return timestamp(leaf, bytes);
    case Physical::bytes:
    case Physical::fixed:
      break;
  }
  return base64(bytes);
}

}  // namespace

Json value_as_json(const Node& leaf, std::string_view bytes, std::string& error) {
  switch (leaf.logical) {
    case Logical::none:
      return without_logical(leaf, bytes);
    case Logical::text:
      if (is_utf8(bytes)) return std::string(bytes);
      error = "expected UTF-8, got other bytes";
      return nullptr;
    case Logical::decimal: {
      constexpr size_t kMostBytes = 32;  // 76 digits
      if (bytes.size() <= kMostBytes) return decimal(leaf, bytes);
      error = "expected a decimal of at most 76 digits, got a longer one";
      return nullptr;
    }
    case Logical::date:
      return date(integer(leaf, bytes));
    case Logical::time: {
      const auto [seconds, fraction] = divide(integer(leaf, bytes), leaf.per_second);
      if (seconds >= 0 && seconds < kSecondsPerDay)
        return time_of_day(seconds, fraction, leaf.per_second);
      error = "expected a time of the day, got one outside it";
      return nullptr;
    }
    case Logical::timestamp:
      return timestamp(leaf, bytes);
    case Logical::unsigned_int:
      return leaf.physical == Physical::int32 ? Json(number<uint32_t>(bytes))
                                              : Json(number<uint64_t>(bytes));
    case Logical::float16:
      return real(half(number<uint16_t>(bytes)));
    case Logical::uuid:
      return uuid(bytes);
  }
  return nullptr;
}

}  // namespace tessera::records::parquet
