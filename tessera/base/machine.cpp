#include "tessera/base/machine.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

/// The lines "name: value" of a file of /proc; the first of several with one name.
std::map<std::string, std::string> named_values(const fs::path& file) {
  std::map<std::string, std::string> values;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    values.emplace(trimmed(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
  }
  return values;
}

std::optional<int64_t> leading_number(const std::string& text) {
  int64_t number = 0;
  const auto end = text.data() + text.size();
  if (std::from_chars(text.data(), end, number).ec != std::errc()) return std::nullopt;
  return number;
}

void read_cpu(const fs::path& root, Machine& machine) {
  auto values = named_values(root / "proc/cpuinfo");
  machine.cpu = values["model name"];
  std::istringstream words(values["flags"]);
  const std::vector<std::string> flags(std::istream_iterator<std::string>(words), {});
  for (const char* flag : kIsaFlags) {
    if (std::find(flags.begin(), flags.end(), flag) != flags.end()) machine.isa.push_back(flag);
  }
}

/// The least limit of the control groups around this process (version 2, then 1).
std::optional<int64_t> group_limit(const fs::path& root) {
  std::optional<int64_t> least;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "memory") continue;
    const auto top = root / (controllers.empty() ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    const auto* file = controllers.empty() ? "memory.max" : "memory.limit_in_bytes";
    for (auto group = fs::path(line.substr(second + 1)).relative_path();;
         group = group.parent_path()) {
      std::string text;
      std::ifstream(top / group / file) >> text;
      if (const auto limit = leading_number(text)) least = std::min(*limit, least.value_or(*limit));
      if (group.empty()) break;
    }
  }
  return least;
}

void read_memory(const fs::path& root, Machine& machine) {
  auto values = named_values(root / "proc/meminfo");
  machine.memory_bytes = leading_number(values["MemTotal"]).value_or(0) << 10;
  machine.available_bytes = leading_number(values["MemAvailable"]).value_or(0) << 10;
  const auto limit = group_limit(root).value_or(machine.memory_bytes);
  machine.memory_bytes = std::min(machine.memory_bytes, limit);
  machine.available_bytes = std::min(machine.available_bytes, limit);
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code missing;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder, missing)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// A container may see GPUs in /proc that it has no device of, or devices without that /proc.
std::vector<std::string> gpus(const fs::path& root) {
  std::map<std::string, std::string> names;  // by number of the device
  for (const auto& gpu : entries(root / "proc/driver/nvidia/gpus")) {
    auto values = named_values(gpu / "information");
    names[values["Device Minor"]] = values["Model"];
  }
  std::vector<std::string> result;
  for (const auto& device : entries(root / "dev")) {
    const auto name = device.filename().string();
    if (!name.starts_with("nvidia") || name.size() == 6) continue;
    const auto number = name.substr(6);
    if (number.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto known = names.find(number);
    result.push_back(known == names.end() ? "NVIDIA GPU" : known->second);
  }
  return result;
}

}  // namespace

Machine this_machine(const fs::path& root) {
  Machine machine{.num_cores = std::max<int64_t>(1, std::thread::hardware_concurrency()),
                  .gpus = gpus(root)};
  read_cpu(root, machine);
  read_memory(root, machine);
  return machine;
}

}  // namespace tessera
