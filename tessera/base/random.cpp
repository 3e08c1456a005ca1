#include "tessera/base/random.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "tessera/base/error.h"

namespace tessera {

std::string random_hex(size_t bytes) {
  std::array<unsigned char, 128> drawn{};
  if (bytes > drawn.size() || ::getentropy(drawn.data(), bytes) != 0) {
    system_error("no random numbers");
  }
  std::string digits;
  for (size_t i = 0; i < bytes; ++i) digits += fmt::format("{:02x}", drawn[i]);
  return digits;
}

}  // namespace tessera
