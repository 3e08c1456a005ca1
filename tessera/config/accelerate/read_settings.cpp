#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/nearest.h"
#include "tessera/config/accelerate/keys.h"
#include "tessera/config/accelerate/normal_value.h"
#include "tessera/config/accelerate/settings.h"
#include "tessera/config/yaml_document.h"

namespace tessera::config::accelerate {
namespace {

constexpr size_t kLongest = 64;  // a longer name is no slip; the edit distance would take its time

bool is_section(const std::string& name) {
  return std::ranges::any_of(keys(), [&](const Key& key) { return key.section == name; }) &&
         !name.empty();
}

/// The key that was most likely meant: the same name in another section, else the nearest spelling
/// here, with or without prefix.
std::string suggestion(const std::string& section, const std::string& name) {
  if (name.size() > kLongest) return "";
  if (name == "<<") return "; merging is not read: write the keys out";
  std::vector<std::string> here;
  for (const auto& key : keys()) {
    const bool same = find_key(key.section.empty() ? name : key.section + "." + name) == &key;
    if (same && key.section != section) {
      const auto place = key.section.empty() ? "at the top" : "below " + key.section;
      return fmt::format("; '{}' belongs {}", key.name, place);
    }
    if (key.section != section) continue;
    here.push_back(key.name);
    const auto prefix = section_prefix(section);
    if (!prefix.empty() && key.name.starts_with(prefix) && !name.starts_with(prefix)) {
      here.push_back(key.name.substr(prefix.size()));
    }
  }
  if (section.empty()) {
    for (const auto& key : keys()) here.push_back(key.section);
    std::erase(here, "");
  }
  return did_you_mean(name, here);
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  Settings read(const YAML::Node& root) {
    refuse_unknown_at_the_top(root);
    std::map<std::string, std::string> sections;  // and where they stand
    for (const auto& entry : root) {
      const auto name = key_name(entry.first);
      if (is_section(name)) {
        const auto [first, is_new] = sections.try_emplace(name, line_of(file_, entry.first));
        if (!is_new) {
          user_error("{}: '{}' is given twice; put its keys below that of {}",
                     line_of(file_, entry.first), name, first->second);
        }
        read_section(name, entry.first, entry.second);
      } else if (name == "fp16") {
        fp16_origin_ = line_of(file_, entry.first);
        auto flag = *find_key("use_cpu");
        flag.name = name;
        if (!entry.second.IsNull())
          fp16_ = normal_value(flag, raw_value(entry.second), fp16_origin_);
      } else {
        add(name, entry);
      }
    }
    apply_fp16();
    if (settings_.find("distributed_type") == nullptr) {
      user_error(
          "{}: distributed_type is missing; set it to NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED",
          file_);
    }
    return std::move(settings_);
  }

 private:
  using Entry = YAML::detail::iterator_value;

  /// Refuses all unknown keys at once, sorted, as Accelerate lists them.
  void refuse_unknown_at_the_top(const YAML::Node& root) const {
    std::vector<std::string> unknown;
    YAML::Node first;
    for (const auto& entry : root) {
      const auto name = key_name(entry.first);
      if (is_section(name) || (name.find('.') == std::string::npos && find_key(name) != nullptr)) {
        continue;
      }
      if (unknown.empty()) first.reset(entry.first);
      unknown.push_back(name);
    }
    if (unknown.empty()) return;
    const auto hint = suggestion("", unknown.front());
    std::ranges::sort(unknown);
    for (auto& name : unknown) name = tessera::quoted(name);
    user_error("{}: the config file had unknown keys ({}); correct or remove them{}",
               line_of(file_, first), fmt::join(unknown, ", "), hint);
  }

  void read_section(const std::string& section, const YAML::Node& key, const YAML::Node& node) {
    if (node.IsNull()) return;
    if (!node.IsMap()) {
      user_error("{}: {}: expected 'key: value' lines below it, got {}", line_of(file_, key),
                 section, node.IsScalar() ? quoted(node.Scalar()) : "a list");
    }
    for (const auto& entry : node) {
      const auto name = key_name(entry.first);
      const auto dotted = section + "." + name;
      if (name.find('.') != std::string::npos || find_key(dotted) == nullptr) {
        user_error("{}: unknown key {}{}", line_of(file_, entry.first), quoted(dotted),
                   suggestion(section, name));
      }
      add(dotted, entry);
    }
  }

  void add(const std::string& name, const Entry& entry) {
    const auto& key = *find_key(name);
    Setting setting{.key = key.dotted(), .value = "", .origin = line_of(file_, entry.first)};
    const auto raw = raw_value(entry.second);
    const bool automatic = key.section == "deepspeed_config" && raw.text == "auto";
    setting.is_null = entry.second.IsNull() || automatic ||
                      (raw.kind == RawValue::Kind::scalar && raw.text.empty());
    if (!setting.is_null) setting.value = normal_value(key, raw, setting.origin);
    const auto before = std::ranges::find(settings_.all(), setting.key, &Setting::key);
    if (before != settings_.all().end() && before->value != setting.value) {
      user_error("{}: '{}' is given twice; keep this one or that of {}", setting.origin, name,
                 before->origin);
    }
    settings_.set(std::move(setting));
  }

  /// fp16: true of the oldest files is mixed_precision: fp16.
  void apply_fp16() {
    if (fp16_.empty()) return;
    const std::string value = fp16_ == "true" ? "fp16" : "no";
    if (const auto* given = settings_.find("mixed_precision")) {
      if (given->value == value || value == "no") return;
      user_error("{}: fp16: true contradicts mixed_precision: {} ({}); remove fp16", fp16_origin_,
                 given->value, given->origin);
    }
    settings_.set({.key = "mixed_precision", .value = value, .origin = fp16_origin_});
  }

  std::string key_name(const YAML::Node& key) const {
    if (!key.IsScalar()) user_error("{}: expected a name before the colon", line_of(file_, key));
    return key.Scalar();
  }

  std::string file_;
  Settings settings_;
  std::string fp16_, fp16_origin_;
};

}  // namespace

Settings read_settings(const std::filesystem::path& file) {
  const auto name = file.string();
  const auto root = parse_yaml(name, read_file(file));
  if (root.IsNull()) {
    user_error("{}: the file is empty; expected Accelerate's keys, such as distributed_type", name);
  }
  if (!root.IsMap()) {
    user_error("{}: expected Accelerate's 'key: value' lines, got {}", line_of(name, root),
               root.IsScalar() ? "a single value" : "a list");
  }
  return Reader(name).read(root);
}

}  // namespace tessera::config::accelerate
