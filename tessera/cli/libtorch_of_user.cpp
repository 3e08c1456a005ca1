#include "tessera/cli/libtorch_of_user.h"

#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/launch/process.h"

extern char** environ;

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

using Version = std::pair<int, int>;

std::string text_of(const Version& version) {
  return fmt::format("{}.{}", version.first, version.second);
}

std::optional<Version> version_in(const fs::path& file, const char* pattern) {
  std::error_code unreadable;
  if (!fs::is_regular_file(file, unreadable)) return {};
  const auto text = read_file(file);
  std::smatch found;
  if (!std::regex_search(text, found, std::regex(pattern))) return {};
  return Version{std::stoi(found[1]), std::stoi(found[2])};
}

fs::path library_of(const fs::path& torch) { return torch / "lib" / "libtorch_cpu.so"; }

/// The version in the torch folder of a PyTorch, or in a LibTorch.
std::optional<Version> version_of(const fs::path& torch) {
  std::error_code unreadable;
  if (!fs::exists(library_of(torch), unreadable)) return {};
  const auto of_wheel = version_in(torch / "version.py", R"(__version__ = '(\d+)\.(\d+))");
  return of_wheel ? of_wheel : version_in(torch / "build-version", R"((\d+)\.(\d+))");
}

/// Does the file end where its header says? The loader maps half a library without a word, and
/// whoever touches the other half is killed.
bool is_whole(const fs::path& library) {
  const MappedFile file(library);
  Elf64_Ehdr header{};
  if (file.bytes().size() < sizeof header) return false;
  std::memcpy(&header, file.bytes().data(), sizeof header);
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize <= file.bytes().size();
}

struct Answer {
  std::string output;    ///< up to 64 KiB
  bool finished = true;  ///< false: it took too long, said too much, or failed
};

/// What a command of the shell prints within ten seconds. All that it started ends with it.
Answer output_of(const std::string& command) {
  constexpr auto kDeadline = std::chrono::seconds(10);
  constexpr size_t kMost = 64 << 10;
  auto pipe = launch::make_pipe();
  launch::SpawnOptions options{
      .program = "/bin/sh", .arguments = {"sh", "-c", command}, .stdout_fd = pipe.write.get()};
  for (char** entry = environ; *entry != nullptr; ++entry) options.environment.emplace_back(*entry);
  const auto child = launch::spawn(options);
  pipe.write.reset();
  Answer answer;
  int status = -1;
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  bool ended = false, open = true;
  // What outlives the command may hold the pipe: it is read once more, and no longer.
  while (open && answer.output.size() < kMost && std::chrono::steady_clock::now() < end) {
    pollfd readable{.fd = pipe.read.get(), .events = POLLIN, .revents = 0};
    ended = ended || ::waitpid(child, &status, WNOHANG) == child;
    if (::poll(&readable, 1, ended ? 0 : 20) > 0) {
      std::array<char, 4096> part{};
      const auto count = ::read(pipe.read.get(), part.data(), part.size());
      open = count > 0;
      if (open) answer.output.append(part.data(), static_cast<size_t>(count));
    } else if (ended) {
      break;
    }
  }
  ::kill(-child, SIGKILL);
  if (!ended) ended = ::waitpid(child, &status, 0) == child;
  answer.finished = ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return answer;
}

/// `text` quoted, so that a shell takes it as one word.
std::string shell_word(const std::string& text) {
  return "'" + std::regex_replace(text, std::regex("'"), R"('\'')") + "'";
}

struct Candidates {
  std::vector<fs::path> folders;  ///< where PyTorch may be, best first
  bool python_failed = false;
};

/// `python3` is asked where its packages are; it does not load them. What else it prints at its start
/// is not the answer.
Candidates candidates(const fs::path& prefix) {
  Candidates found;
  std::error_code ignored;
  for (const auto& folder : fs::directory_iterator(prefix / "lib", ignored)) {
    if (!folder.path().filename().string().starts_with("python3")) continue;
    for (const auto* packages : {"site-packages", "dist-packages"}) {
      found.folders.push_back(folder.path() / packages / "torch");
    }
  }
  const auto asked = output_of(
      "command -v python3 >/dev/null || exit 0; exec python3 -c 'import importlib.util as u; s = "
      "u.find_spec(\"torch\"); print(\"\\ntorch in \" + s.submodule_search_locations[0] if s else "
      "\"\")' 2>/dev/null");
  found.python_failed = !asked.finished;
  std::smatch place;
  static const std::regex line(R"(\ntorch in (.+)\n)");
  if (std::regex_search(asked.output, place, line)) found.folders.emplace_back(place[1].str());
  return found;
}

/// The first thing that `worker` would miss with what LD_LIBRARY_PATH names; "" if nothing.
std::string missing_in(const fs::path& worker) {
  const auto report = output_of("LD_TRACE_LOADED_OBJECTS=1 LD_WARN=yes LD_BIND_NOW=yes " +
                                shell_word(worker.string()) + " 2>&1");
  std::smatch found;
  static const std::regex missing(
      R"((undefined symbol: \S+|\S+ => not found|version .* not found|\S+: (invalid ELF header|file too short|cannot open shared object file).*))");
  return std::regex_search(report.output, found, missing) ? found[1].str() : "";
}

/// Makes the loader of `worker` take this one. UserError: it cannot.
void take(const fs::path& torch, const Version& version, const fs::path& worker) {
  const auto library = library_of(torch);
  if (::access(library.c_str(), R_OK) != 0) {
    user_error("{}: cannot be read: {}", library.string(), std::strerror(errno));
  }
  if (!is_whole(library)) {
    user_error("{}: expected a shared library, got half of one or something else; install it again",
               library.string());
  }
  const auto path = (torch / "lib").string();
  if (path.find_first_of(":;$") != std::string::npos) {
    user_error("{}: the loader takes ':', ';' and '$' for its own; name it by a path without them",
               path);
  }
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const auto all = before == nullptr ? path : path + ":" + before;
  ::setenv("LD_LIBRARY_PATH", all.c_str(), /*overwrite=*/1);
  const auto missing = missing_in(worker);
  if (missing.empty()) return;
  const char* preload = std::getenv("LD_PRELOAD");
  if (preload != nullptr && *preload != '\0') {
    user_error("{}: cannot be used beside LD_PRELOAD={} ({}); unset it", torch.string(), preload,
               missing);
  }
  user_error("{}: this PyTorch {} lacks something ({}); install one with distributed and Gloo",
             torch.string(), text_of(version), missing);
}

}  // namespace

void use_libtorch_of_user(const fs::path& worker, const fs::path& prefix) {
  const auto note = prefix / "lib" / "tessera" / "needs_libtorch";
  std::error_code unreadable;
  if (!fs::exists(note, unreadable) && !unreadable) return;
  const auto needed = version_in(note, R"((\d+)\.(\d+))");
  if (!needed) {
    user_error("{}: expected a version of LibTorch in it; install Tessera again", note.string());
  }
  const char* given = std::getenv("TESSERA_LIBTORCH");
  const bool is_given = given != nullptr && *given != '\0';
  auto found = is_given ? Candidates{.folders = {given}} : candidates(prefix);
  std::vector<std::string> others;
  for (const auto& folder : found.folders) {
    const auto real = fs::canonical(folder, unreadable);
    const auto torch = unreadable ? folder : real;
    const auto version = version_of(torch);
    if (!version && is_given) {
      user_error(
          "TESSERA_LIBTORCH={}: expected a LibTorch or the torch folder of a PyTorch (with "
          "lib/libtorch_cpu.so, and version.py or build-version) that can be read",
          given);
    }
    if (version == needed) return take(torch, *version, worker);
    if (version) others.push_back(fmt::format("{} in {}", text_of(*version), torch.string()));
  }
  user_error(
      "expected PyTorch {}, with which this Tessera was made, {}{}; pip install 'torch=={}.*', or "
      "set TESSERA_LIBTORCH to a LibTorch {}",
      text_of(*needed),
      others.empty() ? "found none" : fmt::format("got {}", fmt::join(others, ", ")),
      found.python_failed ? " (python3 failed when it was asked for one)" : "", text_of(*needed),
      text_of(*needed));
}

}  // namespace tessera::cli
