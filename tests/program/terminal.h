// A terminal for tests, with somebody at it who reads and types.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "tessera/base/file_descriptor.h"

namespace tessera {

class Terminal {
 public:
  Terminal() : person_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    ::grantpt(person_.get());
    ::unlockpt(person_.get());
    program_ = FileDescriptor(::open(::ptsname(person_.get()), O_RDWR | O_NOCTTY));
  }

  int fd() const { return program_.get(); }  ///< the program's side
  bool reads_by_line() const {
    termios mode{};
    ::tcgetattr(fd(), &mode);
    return (mode.c_lflag & ICANON) != 0 && (mode.c_lflag & ECHO) != 0;
  }

  void type(std::string_view keys) {
    [[maybe_unused]] const auto written = ::write(person_.get(), keys.data(), keys.size());
  }

  /// Waits until `text` stands on the terminal behind what was waited for before; what came until
  /// then. A program that never writes it runs into the test's own limit.
  std::string wait_for(std::string_view text) {
    size_t found = 0;
    while ((found = unread_.find(text)) == std::string::npos) {
      char buffer[4096];
      const auto length = ::read(person_.get(), buffer, sizeof buffer);
      if (length <= 0) return unread_ + "<the terminal was closed>";
      unread_.append(buffer, static_cast<size_t>(length));
    }
    auto seen = unread_.substr(0, found + text.size());
    unread_.erase(0, seen.size());
    return seen;
  }

 private:
  FileDescriptor person_, program_;
  std::string unread_;
};

}  // namespace tessera
