#include "tessera/checkpoint/dtype.h"

#include <algorithm>
#include <array>

namespace tessera::checkpoint {
namespace {

struct Known {
  std::string_view name;
  int64_t bytes;
};

// Names and sizes, in the order of DType.
constexpr std::array kKnown{
    Known{"F64", 8}, Known{"F32", 4}, Known{"F16", 2},  Known{"BF16", 2},    Known{"I64", 8},
    Known{"I32", 4}, Known{"I16", 2}, Known{"I8", 1},   Known{"U64", 8},     Known{"U32", 4},
    Known{"U16", 2}, Known{"U8", 1},  Known{"BOOL", 1}, Known{"F8_E4M3", 1}, Known{"F8_E5M2", 1}};
static_assert(kKnown.size() == static_cast<size_t>(DType::f8_e5m2) + 1);

}  // namespace

std::string_view dtype_name(DType dtype) { return kKnown[static_cast<size_t>(dtype)].name; }

int64_t dtype_bytes(DType dtype) { return kKnown[static_cast<size_t>(dtype)].bytes; }

std::optional<DType> dtype_named(std::string_view name) {
  const auto found = std::ranges::find(kKnown, name, &Known::name);
  if (found == kKnown.end()) return std::nullopt;
  return static_cast<DType>(found - kKnown.begin());
}

}  // namespace tessera::checkpoint
