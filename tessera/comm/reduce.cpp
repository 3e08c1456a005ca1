#include "tessera/comm/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <type_traits>

namespace tessera::comm {
namespace {

constexpr int64_t kBlock = 1024;  // accumulators of a block stay in the first-level cache

template <typename T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, at::BFloat16> || std::is_same_v<T, at::Half>, float, T>;

/// NaN if one of them is: no comparison with NaN is true, so std::max would keep the first alone.
template <typename A>
A larger(A a, A b) {
  return b > a || b != b ? b : a;
}

template <typename A>
A smaller(A a, A b) {
  return b < a || b != b ? b : a;
}

template <typename T>
void fold(ReduceOp op, Accumulator<T>* __restrict sum, const T* __restrict part, int64_t count) {
  using A = Accumulator<T>;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      for (int64_t i = 0; i < count; ++i) sum[i] += static_cast<A>(part[i]);
      break;
    case ReduceOp::max:
      for (int64_t i = 0; i < count; ++i) sum[i] = larger(sum[i], static_cast<A>(part[i]));
      break;
    case ReduceOp::min:
      for (int64_t i = 0; i < count; ++i) sum[i] = smaller(sum[i], static_cast<A>(part[i]));
      break;
  }
}

template <typename T>
void reduce_typed(ReduceOp op, std::span<const void* const> parts, void* out, int64_t count) {
  using A = Accumulator<T>;
  alignas(64) A sum[kBlock];
  const auto factor = static_cast<A>(1.0 / static_cast<double>(parts.size()));
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(parts[0]) + begin;
    for (int64_t i = 0; i < block; ++i) sum[i] = static_cast<A>(first[i]);
    for (size_t r = 1; r < parts.size(); ++r) {
      fold<T>(op, sum, static_cast<const T*>(parts[r]) + begin, block);
    }
    if (op == ReduceOp::avg) {
      for (int64_t i = 0; i < block; ++i) sum[i] *= factor;
    }
    T* target = static_cast<T*>(out) + begin;
    for (int64_t i = 0; i < block; ++i) target[i] = static_cast<T>(sum[i]);
  }
}

template <typename T>
void scale_typed(void* data, int64_t count, double factor) {
  auto* values = static_cast<T*>(data);
  const auto by = static_cast<Accumulator<T>>(factor);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(static_cast<Accumulator<T>>(values[i]) * by);
  }
}

[[noreturn]] void no_such_type(at::ScalarType dtype, const char* what) {
  TORCH_CHECK_VALUE(false, what, ": no reduction for tensors of type ", c10::toString(dtype));
}

}  // namespace

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  TORCH_INTERNAL_ASSERT(false);
}

void check_reducible(ReduceOp op, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(op != ReduceOp::avg || at::isFloatingType(dtype),
                    "avg: expected a floating-point tensor, got ", c10::toString(dtype));
  reduce_parts(op == ReduceOp::avg ? ReduceOp::sum : op, dtype, {}, nullptr, 0);
}

void reduce_parts(ReduceOp op, at::ScalarType dtype, std::span<const void* const> parts, void* out,
                  int64_t count) {
  switch (dtype) {
    case at::kFloat:
      return reduce_typed<float>(op, parts, out, count);
    case at::kDouble:
      return reduce_typed<double>(op, parts, out, count);
    case at::kBFloat16:
      return reduce_typed<at::BFloat16>(op, parts, out, count);
    case at::kHalf:
      return reduce_typed<at::Half>(op, parts, out, count);
    case at::kLong:
      return reduce_typed<int64_t>(op, parts, out, count);
    case at::kInt:
      return reduce_typed<int32_t>(op, parts, out, count);
    case at::kByte:
      return reduce_typed<uint8_t>(op, parts, out, count);
    default:
      no_such_type(dtype, "reduce");
  }
}

void scale(at::ScalarType dtype, void* data, int64_t count, double factor) {
  switch (dtype) {
    case at::kFloat:
      return scale_typed<float>(data, count, factor);
    case at::kDouble:
      return scale_typed<double>(data, count, factor);
    case at::kBFloat16:
      return scale_typed<at::BFloat16>(data, count, factor);
    case at::kHalf:
      return scale_typed<at::Half>(data, count, factor);
    default:
      no_such_type(dtype, "avg");
  }
}

}  // namespace tessera::comm
