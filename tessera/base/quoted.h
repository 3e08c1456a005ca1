// How messages show a text that someone else wrote.
#pragma once

#include <string>

namespace tessera {

/// `text` on one line: control characters escaped.
std::string escape_controls(const std::string& text);

/// The same in single quotes, cut after 60 bytes.
std::string quoted(const std::string& text);

}  // namespace tessera
