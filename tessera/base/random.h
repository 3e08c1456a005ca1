// Numbers that nobody can foresee, drawn from the kernel.
#pragma once

#include <cstddef>
#include <string>

namespace tessera {

/// `bytes` (at most 128) random bytes as lower-case hexadecimal digits. Throws SystemError.
std::string random_hex(size_t bytes);

}  // namespace tessera
