// Bytes to a file descriptor.
#pragma once

#include <string_view>

namespace tessera::report {

/// Writes all of `bytes`, going on after interruptions and short writes. Returns false on an error,
/// with errno set.
bool write_all(int fd, std::string_view bytes);

}  // namespace tessera::report
