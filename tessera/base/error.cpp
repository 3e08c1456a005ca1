#include "tessera/base/error.h"

#include <cerrno>
#include <cstring>

namespace tessera {

void system_error(const std::string& what) {
  throw SystemError(fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace tessera
