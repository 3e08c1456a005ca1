#include "tessera/base/path_error.h"

#include "tessera/base/error.h"

namespace tessera {

void path_error(const std::string& what, const std::error_code& code) {
  const auto line = fmt::format("{}: {}", what, code.message());
  for (const auto of_user : {std::errc::permission_denied, std::errc::filename_too_long,
                             std::errc::too_many_symbolic_link_levels}) {
    if (code == of_user) throw UserError(line);
  }
  throw SystemError(line);
}

}  // namespace tessera
