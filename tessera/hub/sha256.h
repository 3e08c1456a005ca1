// SHA-256 (FIPS 180-4), by which the Hub names large files.
#pragma once

#include <string>
#include <string_view>

namespace tessera::hub {

std::string sha256(std::string_view bytes);  ///< 64 lower-case hexadecimal digits

}  // namespace tessera::hub
