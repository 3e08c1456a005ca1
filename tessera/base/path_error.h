// What a file system refuses, in our words.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace tessera {

/// Throws the error of a path: UserError for one that may not be looked at or cannot be (permission, a
/// name too long, links in circles), else SystemError. "<what>: <why>".
[[noreturn]] void path_error(const std::string& what, const std::error_code& code);

/// What `action` gives; what the standard library says of a path becomes a path_error.
template <typename Action>
auto with_path_errors(const Action& action) {
  try {
    return action();
  } catch (const std::filesystem::filesystem_error& error) {
    path_error(error.path1().string(), error.code());
  }
}

}  // namespace tessera
