// Names with wildcards.
#pragma once

#include <string_view>

namespace tessera {

/// Does `text` match `pattern`, in which `*` stands for any characters?
bool matches(std::string_view pattern, std::string_view text);

}  // namespace tessera
