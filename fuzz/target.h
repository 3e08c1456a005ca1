// What every fuzz target does: it reads bytes, and the one thing it may throw is a refusal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::fuzz {

/// Calls `read` with the bytes. A UserError of one line is as good an end as none; of several it is
/// a finding, as is whatever else is thrown.
template <typename Read>
int run(const uint8_t* data, size_t size, const Read& read) {
  try {
    read(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const UserError& error) {
    if (std::string_view(error.what()).find('\n') == std::string_view::npos) return 0;
    std::fprintf(stderr, "a refusal of several lines: %s\n", error.what());
    std::abort();
  }
  return 0;
}

}  // namespace tessera::fuzz
