#include "tessera/hub/dataset_files.h"

#include <fmt/ranges.h>
#include <fnmatch.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/letters.h"
#include "tessera/records/file_type.h"

namespace tessera::hub {
namespace {

using Splits = std::map<std::string, std::vector<std::string>>;  // files by split

/// "train-00000-of-00002" is part 0 of 2 of "train".
struct Shard {
  std::string name;
  int64_t index = 0, count = 0;
};

std::optional<Shard> shard_of(const std::string& stem) {
  constexpr size_t kDigits = 5, kEnd = 1 + kDigits + 4 + kDigits;  // "-00000-of-00002"
  if (stem.size() <= kEnd) return std::nullopt;
  const auto end = stem.substr(stem.size() - kEnd);
  const auto is_number = [](std::string_view text) {
    return std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  const auto index = end.substr(1, kDigits), count = end.substr(kEnd - kDigits);
  if (end[0] != '-' || end.substr(1 + kDigits, 4) != "-of-" || !is_number(index) ||
      !is_number(count))
    return std::nullopt;
  return Shard{.name = stem.substr(0, stem.size() - kEnd),
               .index = std::atoll(index.c_str()),
               .count = std::atoll(count.c_str())};
}

/// A file's name without its endings.
std::string stem_of(const std::string& file) { return file.substr(0, file.find('.')); }

/// The split of which a word stands in `text`, between other signs than letters and digits.
std::string split_in(const std::string& text) {
  static const std::map<std::string, std::string> kWords = {
      {"train", "train"},      {"training", "train"}, {"validation", "validation"},
      {"valid", "validation"}, {"val", "validation"}, {"dev", "validation"},
      {"test", "test"},        {"testing", "test"},   {"eval", "test"},
      {"evaluation", "test"}};
  std::string word;
  for (const unsigned char c : text + " ") {
    if (std::isalnum(c) != 0) {
      word += static_cast<char>(std::tolower(c));
      continue;
    }
    if (const auto found = kWords.find(word); found != kWords.end()) return found->second;
    word.clear();
  }
  return "";
}

/// The split that a name says; "": none.
std::string split_of(const std::filesystem::path& name) {
  const auto stem = stem_of(name.filename().string());
  if (auto split = split_in(stem); !split.empty()) return split;
  if (const auto shard = shard_of(stem)) return shard->name;
  for (auto folder = name.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (auto split = split_in(folder.filename().string()); !split.empty()) return split;
  }
  return "";
}

Splits splits_by_name(const std::vector<std::string>& files) {
  Splits splits;
  for (const auto& file : files) {
    if (records::type_by_name(file)) splits[split_of(file)].push_back(file);
  }
  auto unnamed = splits.extract("");
  if (splits.empty() && !unnamed.empty()) splits["train"] = std::move(unnamed.mapped());
  return splits;
}

std::vector<std::string> below(const std::vector<std::string>& all, std::string folder) {
  if (!folder.empty() && !folder.ends_with('/')) folder += '/';
  std::vector<std::string> files;
  for (const auto& name : all) {
    if (name.starts_with(folder)) files.push_back(name);
  }
  return files;
}

// ---- what the card says ------------------------------------------------------------------------

std::vector<std::string> texts_of(const YAML::Node& node) {
  if (node.IsScalar()) return {node.Scalar()};
  std::vector<std::string> texts;
  for (const auto& item : node) {
    if (item.IsScalar()) texts.push_back(item.Scalar());
  }
  return texts;
}

std::vector<std::string> matching(const std::vector<std::string>& all, std::string pattern) {
  if (pattern.starts_with("./")) pattern.erase(0, 2);
  const int flags = pattern.find("**") == std::string::npos ? FNM_PATHNAME : 0;
  std::vector<std::string> files;
  for (const auto& name : all) {
    if (name == pattern || ::fnmatch(pattern.c_str(), name.c_str(), flags) == 0)
      files.push_back(name);
  }
  return files;
}

void add_matching(const std::vector<std::string>& all, const YAML::Node& patterns,
                  std::vector<std::string>& files) {
  for (const auto& pattern : texts_of(patterns)) {
    const auto found = matching(all, pattern);
    files.insert(files.end(), found.begin(), found.end());
  }
}

/// `data_files` is a pattern, patterns, or a list of splits with theirs.
Splits splits_of_config(const YAML::Node& config, const std::vector<std::string>& all) {
  const auto files = below(all, config["data_dir"] ? config["data_dir"].Scalar() : "");
  const auto data_files = config["data_files"];
  if (!data_files) return splits_by_name(files);
  Splits splits;
  const bool by_split = data_files.IsSequence() && data_files.size() > 0 && data_files[0].IsMap();
  if (!by_split) {
    add_matching(files, data_files, splits["train"]);
    return splits;
  }
  for (const auto& item : data_files) {
    if (item.IsMap() && item["split"] && item["path"])
      add_matching(files, item["path"], splits[item["split"].Scalar()]);
  }
  return splits;
}

/// The card's `configs`; none if it has none.
YAML::Node configs_of(const std::string& card, const std::string& who) {
  constexpr std::string_view kFence = "---";
  if (!card.starts_with(kFence)) return {};
  const auto end = card.find("\n---", kFence.size());
  if (end == std::string::npos) return {};
  try {
    const auto root = YAML::Load(card.substr(kFence.size(), end - kFence.size()));
    if (!root.IsMap() || !root["configs"] || !root["configs"].IsSequence()) return {};
    return root["configs"];
  } catch (const YAML::Exception& error) {
    user_error("{}: {}: its head is no YAML: {}", who, kCard, error.what());
  }
}

std::string name_of(const YAML::Node& config) {
  return config["config_name"] && config["config_name"].IsScalar() ? config["config_name"].Scalar()
                                                                   : "default";
}

/// The configuration that is asked for, or the default one.
YAML::Node chosen(const YAML::Node& configs, const std::string& wanted, const std::string& who) {
  std::vector<std::string> names;
  for (const auto& config : configs) {
    if (!config.IsMap()) continue;
    names.push_back(name_of(config));
    const bool is_default = config["default"] && config["default"].as<bool>(false);
    if (wanted.empty() ? is_default : names.back() == wanted) return config;
  }
  for (const auto& config : configs) {
    if (wanted.empty() && config.IsMap() && (names.size() == 1 || name_of(config) == "default"))
      return config;
  }
  user_error("{}: expected one of its configurations {}, as in {}:{}/train{}", who,
             fmt::join(names, ", "), who.substr(0, who.find(':')),
             names.empty() ? "NAME" : names.front(),
             wanted.empty() ? "" : ", got '" + wanted + "'");
}

/// Is every part of what comes in parts there?
void check_shards(const std::vector<std::string>& files, const std::string& who) {
  std::map<std::pair<std::string, int64_t>, std::set<int64_t>> found;
  for (const auto& file : files) {
    const std::filesystem::path path(file);
    const auto shard = shard_of(stem_of(path.filename().string()));
    if (shard)
      found[{(path.parent_path() / shard->name).string(), shard->count}].insert(shard->index);
  }
  for (const auto& [name, indices] : found) {
    if (std::ssize(indices) >= name.second) continue;
    user_error("{}: expected {} parts of {}, got {}; the rest is missing", who, name.second,
               name.first, indices.size());
  }
}

}  // namespace

std::vector<std::string> split_files(const std::vector<std::string>& all, const std::string& card,
                                     const SplitName& wanted, const std::string& who) {
  const auto configs = configs_of(card, who);
  const bool has_configs = configs.IsSequence() && configs.size() > 0;
  auto splits = has_configs ? splits_of_config(chosen(configs, wanted.config, who), all)
                            : splits_by_name(below(all, wanted.config));
  std::erase_if(splits, [](const auto& split) { return split.second.empty(); });
  const auto found = splits.find(wanted.split);
  if (found == splits.end()) {
    std::vector<std::string> names;
    for (const auto& [name, files] : splits) names.push_back(name);
    if (names.empty())
      user_error("{}: no files of rows in it: expected {}", who, records::kKnownTypes);
    user_error("{}: expected one of its splits {}, got '{}'", who, fmt::join(names, ", "),
               wanted.split);
  }
  auto files = found->second;
  std::ranges::sort(files);
  files.erase(std::unique(files.begin(), files.end()), files.end());
  check_shards(files, who);
  return files;
}

}  // namespace tessera::hub
