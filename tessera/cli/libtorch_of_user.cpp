#include "tessera/cli/libtorch_of_user.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

using Version = std::pair<int, int>;

std::string text_of(const Version& version) {
  return fmt::format("{}.{}", version.first, version.second);
}

std::optional<Version> version_in(const fs::path& file, const char* pattern) {
  if (!fs::is_regular_file(file)) return {};
  const auto text = read_file(file);
  std::smatch found;
  if (!std::regex_search(text, found, std::regex(pattern))) return {};
  return Version{std::stoi(found[1]), std::stoi(found[2])};
}

/// The version of the torch folder of a PyTorch, or of a LibTorch.
std::optional<Version> version_of(const fs::path& torch) {
  if (!fs::exists(torch / "lib" / "libtorch_cpu.so")) return {};
  const auto of_wheel = version_in(torch / "version.py", R"(__version__ = '(\d+)\.(\d+))");
  return of_wheel ? of_wheel : version_in(torch / "build-version", R"((\d+)\.(\d+))");
}

/// What a command prints; "" if it fails.
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string output;
  std::array<char, 4096> part{};
  while (pipe != nullptr) {
    const auto count = std::fread(part.data(), 1, part.size(), pipe.get());
    if (count == 0) break;
    output.append(part.data(), count);
  }
  return output;
}

/// `text` as one word of a shell.
std::string shell_word(const std::string& text) {
  return "'" + std::regex_replace(text, std::regex("'"), R"('\'')") + "'";
}

/// Where PyTorch may be, best first. `python3` is asked where its packages are; it does not load
/// them.
std::vector<fs::path> candidates(const fs::path& prefix) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& folder : fs::directory_iterator(prefix / "lib", ignored)) {
    if (!folder.path().filename().string().starts_with("python3")) continue;
    for (const auto* packages : {"site-packages", "dist-packages"}) {
      found.push_back(folder.path() / packages / "torch");
    }
  }
  auto asked = output_of(
      "python3 -c 'import importlib.util as u; s = u.find_spec(\"torch\"); "
      "print(s.submodule_search_locations[0] if s else \"\", end=\"\")' 2>/dev/null");
  if (!asked.empty()) found.emplace_back(std::move(asked));
  return found;
}

/// The first thing that `worker` would miss with what LD_LIBRARY_PATH names; "" if nothing.
std::string missing_in(const fs::path& worker) {
  const auto report =
      output_of(fmt::format("LD_TRACE_LOADED_OBJECTS=1 LD_WARN=yes LD_BIND_NOW=yes {} 2>&1",
                            shell_word(worker.string())));
  std::smatch found;
  static const std::regex missing(
      R"((undefined symbol: \S+|\S+ => not found|version .* not found))");
  return std::regex_search(report, found, missing) ? found[1].str() : "";
}

}  // namespace

void use_libtorch_of_user(const fs::path& worker, const fs::path& prefix) {
  const auto needed = version_in(prefix / "lib" / "tessera" / "needs_libtorch", R"((\d+)\.(\d+))");
  if (!needed) return;
  const char* given = std::getenv("TESSERA_LIBTORCH");
  const bool is_given = given != nullptr && *given != '\0';
  std::vector<std::string> others;
  for (const auto& torch : is_given ? std::vector<fs::path>{given} : candidates(prefix)) {
    const auto version = version_of(torch);
    if (!version && is_given) {
      user_error("TESSERA_LIBTORCH={}: expected a LibTorch or the torch folder of a PyTorch",
                 given);
    }
    if (version != needed) {
      if (version) others.push_back(fmt::format("{} in {}", text_of(*version), torch.string()));
      continue;
    }
    const char* before = std::getenv("LD_LIBRARY_PATH");
    const auto path = (torch / "lib").string();
    const auto all = before == nullptr ? path : path + ":" + before;
    ::setenv("LD_LIBRARY_PATH", all.c_str(), /*overwrite=*/1);
    const auto missing = missing_in(worker);
    if (missing.empty()) return;
    user_error("{}: this PyTorch {} lacks something ({}); install one with distributed and Gloo",
               torch.string(), text_of(*version), missing);
  }
  user_error(
      "expected PyTorch {}, with which this Tessera was made, {}; pip install 'torch=={}.*', or "
      "set TESSERA_LIBTORCH to a LibTorch {}",
      text_of(*needed),
      others.empty() ? "found none" : fmt::format("got {}", fmt::join(others, ", ")),
      text_of(*needed), text_of(*needed));
}

}  // namespace tessera::cli
