// The wording and the kinds of errors, for code with and without LibTorch.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace tessera {

/// A mistake of the user: one line that names the file, key or value, what was expected and what to
/// do. `cli/` prints it; the process then ends with exit code 2 (`kUserErrorExit`). Code with
/// LibTorch may also throw c10::ValueError (TORCH_CHECK_VALUE), which `cli/` treats alike.
class UserError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A failure that is neither the user's nor ours: disk, memory, operating system. Exit code 1.
class SystemError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr int kUserErrorExit = 2;
inline constexpr int kFailureExit = 1;
/// A run that a signal asked to end has saved a checkpoint: start it again to go on (EX_TEMPFAIL of
/// sysexits.h, which schedulers requeue on).
inline constexpr int kPreemptedExit = 75;

/// Throws UserError with an fmt-formatted line.
template <typename... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws SystemError with an fmt-formatted line followed by strerror(errno).
[[noreturn]] void system_error(const std::string& what);

}  // namespace tessera
