// SHA-1 (FIPS 180-4), by which Git names contents. It finds what was cut or changed by accident; it
// is no proof against somebody who makes two contents of one name.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// The name that Git gives a file of this content: 40 lower-case hexadecimal digits.
std::string git_blob_name(std::string_view content);

}  // namespace tessera
