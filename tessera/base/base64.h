// Bytes as text of 64 characters (RFC 4648, section 4).
#pragma once

#include <string>
#include <string_view>

namespace tessera {

std::string base64(std::string_view bytes);  ///< with '=' at the end where bytes are missing

}  // namespace tessera
