#include "tessera/hub/model_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/hub/file_names.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kAdapterConfig = "adapter_config.json";
constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kExtension = ".safetensors";

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// Is `name` a file of weights, given which others there are? A repository may hold the same
/// weights twice, for another program ("consolidated.safetensors").
bool is_weights(const std::vector<std::string>& all, const std::string& name) {
  if (contains(all, kWhole)) return name == kWhole;
  if (!contains(all, kIndex)) return name.ends_with(kExtension);
  return name == kIndex || (name.starts_with("model-") && name.ends_with(kExtension));
}

/// The first shard that an index names and its folder lacks; "" if none, or if it is no index:
/// whoever reads it will say so.
std::string missing_shard(const fs::path& index) {
  const auto root = nlohmann::json::parse(read_file(index), nullptr, false);
  if (!root.is_object() || !root.contains("weight_map")) return "";
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    if (!file.is_string()) continue;
    const auto name = file.get<std::string>();
    if (!fs::exists(index.parent_path() / name)) return name;
  }
  return "";
}

bool has_safetensors(const fs::path& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const auto& entry) {
    return entry.path().extension() == kExtension && entry.exists();
  });
}

}  // namespace

std::vector<std::string> wanted_files(const std::vector<std::string>& all, bool weights) {
  std::vector<std::string> wanted;
  for (const auto& name : all) {
    if (name.find('/') != std::string::npos) continue;
    const bool is_text = std::ranges::find(kTextFiles, name) != kTextFiles.end();
    if (name == kConfig || name == kAdapterConfig || is_text ||
        (weights && is_weights(all, name))) {
      wanted.push_back(name);
    }
  }
  return wanted;
}

std::string missing_file(const fs::path& folder, bool weights) {
  if (!fs::exists(folder / kConfig) && !fs::exists(folder / kAdapterConfig)) return kConfig;
  if (!weights || fs::exists(folder / kWhole)) return "";
  if (fs::exists(folder / kIndex)) return missing_shard(folder / kIndex);
  return has_safetensors(folder) ? "" : kWhole;
}

}  // namespace tessera::hub
