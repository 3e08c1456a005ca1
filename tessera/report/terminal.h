// What a terminal can show.
#pragma once

#include <string_view>

namespace tessera::report {

/// Goes to the first column, and clears to the end.
inline constexpr std::string_view kStartOfLine = "\r\x1b[K";

bool is_capable_terminal(int fd);  ///< a terminal, and TERM is not "dumb"
int terminal_columns(int fd);      ///< $COLUMNS or 80 if it does not say

std::string_view environment(const char* name);  ///< "": not set

}  // namespace tessera::report
