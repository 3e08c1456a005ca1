#include "tessera/checkpoint/formats/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "tessera/checkpoint/convert_dtype.h"

namespace tessera::checkpoint {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kChunkElements = int64_t{1} << 20;

template <typename T>
T element(std::span<const std::byte> bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
double distance(T a, T b) {
  if (a == b) return 0;
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) && std::isnan(b)) return 0;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::infinity();
    return std::abs(a - b);
  } else {
    // Exact below 2^64: a double alone would take neighbours beyond 2^53 for equal.
    return static_cast<double>(a > b ? uint64_t(a) - uint64_t(b) : uint64_t(b) - uint64_t(a));
  }
}

template <typename T>
void compare(std::span<const std::byte> a, std::span<const std::byte> b, double tolerance,
             TensorDifference& found) {
  for (size_t i = 0; i < a.size() / sizeof(T); ++i) {
    const double apart = distance(element<T>(a, i), element<T>(b, i));
    found.max_difference = std::max(found.max_difference, apart);
    if (apart > tolerance) ++found.num_different;
  }
}

/// Compares values of types that are not known here by their bytes.
void compare_codes(std::span<const std::byte> a, std::span<const std::byte> b,
                   TensorDifference& found) {
  for (size_t i = 0; i < a.size(); ++i) found.num_different += a[i] == b[i] ? 0 : 1;
  found.max_difference = std::numeric_limits<double>::quiet_NaN();
}

Bytes as_f64(const Bytes& values, DType dtype) {
  Bytes converted(values.size() / static_cast<size_t>(dtype_bytes(dtype)) * sizeof(double));
  convert_values(values, dtype, converted, DType::f64);
  return converted;
}

void compare_values(const Bytes& a, const Bytes& b, double tolerance, TensorDifference& found) {
  const auto dtype = found.a.dtype;
  if (dtype == found.b.dtype && a == b) return;
  if (is_float(dtype)) {
    return compare<double>(as_f64(a, dtype), as_f64(b, found.b.dtype), tolerance, found);
  }
  switch (dtype) {
    case DType::i64:
      return compare<int64_t>(a, b, tolerance, found);
    case DType::i32:
      return compare<int32_t>(a, b, tolerance, found);
    case DType::i16:
      return compare<int16_t>(a, b, tolerance, found);
    case DType::i8:
      return compare<int8_t>(a, b, tolerance, found);
    case DType::u64:
      return compare<uint64_t>(a, b, tolerance, found);
    case DType::u32:
      return compare<uint32_t>(a, b, tolerance, found);
    case DType::u16:
      return compare<uint16_t>(a, b, tolerance, found);
    case DType::u8:
    case DType::boolean:
      return compare<uint8_t>(a, b, tolerance, found);
    default:
      return compare_codes(a, b, found);
  }
}

TensorDifference compare_tensors(const TensorSource& a, const TensorSource& b,
                                 const std::string& name, double tolerance) {
  TensorDifference found{.name = name, .a = a.info(name), .b = b.info(name)};
  const bool comparable =
      found.a.dtype == found.b.dtype || (is_float(found.a.dtype) && is_float(found.b.dtype));
  if (found.a.shape != found.b.shape || !comparable) {
    found.max_difference = std::numeric_limits<double>::quiet_NaN();
    return found;
  }
  Bytes values_a, values_b;
  for (int64_t begin = 0, end = found.a.num_elements(); begin < end; begin += kChunkElements) {
    const int64_t count = std::min(kChunkElements, end - begin);
    values_a.resize(static_cast<size_t>(count * dtype_bytes(found.a.dtype)));
    values_b.resize(static_cast<size_t>(count * dtype_bytes(found.b.dtype)));
    a.read(name, begin, values_a);
    b.read(name, begin, values_b);
    compare_values(values_a, values_b, tolerance, found);
  }
  return found;
}

}  // namespace

Differences diff(const TensorSource& a, const TensorSource& b, double tolerance) {
  Differences differences;
  for (const auto& [name, info] : a.tensors()) {
    if (!b.contains(name)) {
      differences.only_a.push_back(name);
      continue;
    }
    auto found = compare_tensors(a, b, name, tolerance);
    if (found.a == found.b && found.num_different == 0) {
      ++differences.num_equal;
    } else {
      differences.tensors.push_back(std::move(found));
    }
  }
  for (const auto& [name, info] : b.tensors()) {
    if (!a.contains(name)) differences.only_b.push_back(name);
  }
  return differences;
}

}  // namespace tessera::checkpoint
