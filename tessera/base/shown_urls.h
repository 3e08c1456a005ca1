// Addresses as others may see them.
#pragma once

#include <string>

namespace tessera {

/// What stands in place of a secret.
inline constexpr const char* kHidden = "(hidden)";

/// `text` with "(hidden)" in place of user and password, query and fragment of each URL in it: that
/// is where signatures and tokens stand.
std::string shown_urls(std::string text);

}  // namespace tessera
