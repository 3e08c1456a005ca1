// Bytes of values that are of one type whatever the precision of a run.
#pragma once

#include <cstdint>

namespace tessera {

inline constexpr int64_t kFloat = 4, kLong = 8, kDouble = 8;

}  // namespace tessera
