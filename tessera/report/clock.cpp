#include "tessera/report/clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::report {
namespace {

// Files of /proc have no size to map, hence not base's read_file.
std::string read_proc(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) system_error(fmt::format("{}: cannot be opened", path));
  std::string content;
  std::array<char, 4096> buffer;
  ssize_t count = 0;
  while ((count = ::read(fd, buffer.data(), buffer.size())) > 0) {
    content.append(buffer.data(), static_cast<size_t>(count));
  }
  ::close(fd);
  if (count < 0) system_error(fmt::format("{}: cannot be read", path));
  return content;
}

int64_t leading_integer(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int64_t status_bytes(std::string_view status, std::string_view key) {
  const size_t at = status.find(key);
  if (at == std::string_view::npos) return 0;
  return leading_integer(status.substr(at + key.size())) * 1024;
}

}  // namespace

double boot_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_since_process_start() {
  const std::string stat = read_proc("/proc/self/stat");
  // "pid (name) state ppid ..": the name may hold spaces and brackets, so fields are counted from
  // its last bracket. starttime is field 22, the 20th after the name.
  std::string_view rest = stat;
  rest.remove_prefix(rest.rfind(')') + 1);
  for (int field = 0; field < 20; ++field) rest.remove_prefix(rest.find(' ') + 1);
  const double ticks = static_cast<double>(leading_integer(rest));
  return boot_seconds() - ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double seconds_since_launch() {
  const char* text = std::getenv(kLaunchTimeVariable);
  if (text == nullptr) return seconds_since_process_start();
  char* end = nullptr;
  const double launched = std::strtod(text, &end);
  const double elapsed = boot_seconds() - launched;
  if (end == text || *end != '\0' || !(launched >= 0) || elapsed < 0) {
    user_error("{}: expected seconds since boot, got '{}'; unset it", kLaunchTimeVariable, text);
  }
  return elapsed;
}

ProcessMemory process_memory() {
  const std::string status = read_proc("/proc/self/status");
  return {.current_bytes = status_bytes(status, "VmRSS:"),
          .peak_bytes = status_bytes(status, "VmHWM:")};
}

}  // namespace tessera::report
