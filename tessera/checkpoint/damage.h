// What is wrong with a checkpoint that cannot be used any more, and only with such a one.
#pragma once

#include <utility>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

/// A checkpoint that is not, or no longer, what was written: not complete, a file missing, cut or
/// with another checksum. No right to read it, a disk that fails and a format of another version
/// are other errors: it may be whole.
class DamagedCheckpoint : public UserError {
  using UserError::UserError;
};

/// Throws DamagedCheckpoint with an fmt-formatted line.
template <typename... Args>
[[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) {
  throw DamagedCheckpoint(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tessera::checkpoint
