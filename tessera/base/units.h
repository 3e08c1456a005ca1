// Bytes, seconds and counts as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

std::string format_bytes(int64_t bytes);     ///< "1.5 GiB", "640 B"
std::string format_seconds(double seconds);  ///< "830 ms", "12.4 s", "3 min 05 s", "2 h 10 min"
std::string format_count(double count);      ///< "950", "58.1 M", "1.24 B"

}  // namespace tessera
