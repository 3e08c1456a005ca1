#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/nearest.h"
#include "tessera/config/fields.h"
#include "tessera/config/precision.h"
#include "tessera/config/run_config.h"
#include "tessera/config/values.h"
#include "tessera/config/yaml_document.h"

namespace tessera::config {
namespace {

// ---- names -------------------------------------------------------------------------------------

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const auto& section : sections()) names.push_back(section.name);
  return names;
}

bool has_name(const Field& field, const std::string& name) {
  const auto& aliases = field.rule.aliases;
  return field.name() == name || std::find(aliases.begin(), aliases.end(), name) != aliases.end();
}

/// The key that the user most likely meant by `name` in `section` (either may be wrong): what other
/// tools call it, in this section or another; else the nearest spelling, in this section or
/// another.
std::string suggestion(const std::string& section, const std::string& name) {
  constexpr size_t kLongest = 64;  // a longer one is no slip; the edit distance would take its time
  if (name.size() > kLongest) return "";
  std::string exact, near;
  std::vector<std::string> all, keys;
  for (const auto& candidate : sections()) {
    std::vector<std::string> here;
    for (const auto& field : candidate.fields) {
      const bool better = exact.empty() || candidate.name == section;
      if (better && has_name(field, name)) exact = field.key;
      here.push_back(field.name());
      all.push_back(field.name());
      keys.push_back(field.key);
    }
    if (candidate.name != section) continue;
    if (const auto found = nearest(name, here); !found.empty()) near = section + "." + found;
  }
  if (exact.empty()) exact = near;
  if (exact.empty() && name.find('.') != std::string::npos) exact = nearest(name, keys);
  if (exact.empty()) {
    const auto found = std::find(all.begin(), all.end(), nearest(name, all));
    if (found != all.end()) exact = keys[static_cast<size_t>(found - all.begin())];
  }
  return exact.empty() ? "" : fmt::format("; did you mean '{}'?", exact);
}

// ---- job file ----------------------------------------------------------------------------------

/// A job file as a mapping.
YAML::Node parse_job(const std::string& file, const std::string& text) {
  const auto job = parse_yaml(file, text);
  if (job.IsNull()) {
    user_error(
        "{}: the job file is empty; expected sections such as 'model:', 'data:' and 'train:'",
        file);
  }
  if (!job.IsMap()) {
    user_error("{}: expected sections such as 'model:' with 'key: value' lines, got {}",
               line_of(file, job), job.IsScalar() ? "a single value" : "a list");
  }
  return job;
}

class JobReader {
 public:
  JobReader(std::string file, LoadedConfig& loaded) : file_(std::move(file)), loaded_(loaded) {}

  void read(const YAML::Node& job) {
    std::set<std::string> seen;
    for (const auto& entry : job) {
      const auto name = key_name(entry.first);
      const auto& all = sections();
      const auto section =
          std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.name == name; });
      if (section == all.end()) unknown_section(entry.first, name);
      if (!seen.insert(name).second) duplicate(entry.first, name);
      if (!entry.second.IsMap()) {
        const auto got = entry.second.IsScalar() ? quoted(entry.second.Scalar())
                         : entry.second.IsNull() ? "nothing (null)"
                                                 : "a list";
        user_error("{}: {}: expected 'key: value' lines below it, got {}", line(entry.first), name,
                   got);
      }
      read_section(*section, entry.second);
    }
  }

 private:
  void read_section(const Section& section, const YAML::Node& node) {
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const auto name = key_name(entry.first);
      const auto key = section.name + "." + name;
      const auto* field = find_field(key);
      if (field == nullptr) {
        user_error("{}: unknown key {}{}", line(entry.first), quoted(key),
                   suggestion(section.name, name));
      }
      if (!seen.insert(name).second) duplicate(entry.first, key);
      set_field(*field, raw_value(entry.second), line(entry.first) + ": " + key, loaded_.config);
      loaded_.origins[key] = line(entry.first);
    }
  }

  std::string line(const YAML::Node& key) const { return line_of(file_, key); }

  std::string key_name(const YAML::Node& key) const {
    if (!key.IsScalar()) user_error("{}: expected a name before the colon", line(key));
    return key.Scalar();
  }

  [[noreturn]] void duplicate(const YAML::Node& node, const std::string& name) const {
    user_error("{}: '{}' is given twice; keep one of them", line(node), name);
  }

  [[noreturn]] void unknown_section(const YAML::Node& node, const std::string& name) const {
    if (const auto* field = find_field(name)) {
      user_error("{}: expected '{}' below '{}:' instead of the dotted key '{}'", line(node),
                 field->name(), name.substr(0, name.find('.')), name);
    }
    const auto names = section_names();
    auto hint = name.size() > 64 ? "" : did_you_mean(name, names);
    if (hint.empty()) hint = suggestion("", name);
    user_error("{}: unknown section {}; expected one of {}{}", line(node), quoted(name),
               fmt::join(names, ", "), hint);
  }

  std::string file_;
  LoadedConfig& loaded_;
};

// ---- command line ------------------------------------------------------------------------------

RawValue raw_override(const Field& field, const std::string& where, const std::string& text) {
  using Kind = RawValue::Kind;
  const auto type = type_name(field);
  const bool list = type.starts_with("list"), map = type.starts_with("mapping");
  if (map || (list && text.starts_with('['))) {
    try {
      return raw_value(YAML::Load(text));
    } catch (const YAML::Exception&) {
      user_error("{}: expected {}, got {}", where,
                 map ? "a mapping such as {a: 1, b: 2}" : "a list such as a,b or [a, b]",
                 quoted(text));
    }
  }
  if (list) {
    RawValue raw{.kind = Kind::list};
    for (size_t begin = 0; begin < text.size();) {
      const auto end = std::min(text.find(',', begin), text.size());
      raw.items.push_back(text.substr(begin, end - begin));
      begin = end + 1;
      if (begin == text.size()) raw.items.emplace_back();  // a comma at the end: an empty item
    }
    return raw;
  }
  if (type != "text" && (text == "null" || text == "~")) return {};
  return {.kind = Kind::scalar, .text = text};
}

void apply_override(const Override& override, LoadedConfig& loaded) {
  const auto& [key, value, origin, if_effective] = override;
  const auto* field = find_field(key);
  const auto where = origin == kCommandLine ? "--" + key : origin + ": " + key;
  if (field == nullptr) {
    const auto dot = key.find('.');
    const auto section = dot == std::string::npos ? "" : key.substr(0, dot);
    const auto name = dot == std::string::npos ? key : key.substr(dot + 1);
    user_error("unknown key {}{}", quoted("--" + key), suggestion(section, name));
  }
  set_field(*field, raw_override(*field, where, value), where, loaded.config);
  loaded.origins[key] = origin;
}

/// Takes back what could have no effect, unless a later override said it, too.
void drop_ineffective(const std::vector<Override>& overrides, LoadedConfig& loaded) {
  for (const auto& override : overrides) {
    auto& origin = loaded.origins.at(override.key);
    if (!override.if_effective || origin != override.origin) continue;
    if (needed_for_effect(override.key, loaded.config).empty()) continue;
    const auto& field = *find_field(override.key);
    copy_field(field, RunConfig{}, loaded.config);
    origin = "default";
  }
}

}  // namespace

Override parse_override(const std::string& text) {
  const auto equals = text.find('=');
  const auto key = text.substr(0, equals);
  if (equals == std::string::npos) user_error("--{}: expected a value, as in --{}=VALUE", key, key);
  return {.key = key, .value = text.substr(equals + 1)};
}

LoadedConfig load_run_config(const std::string& file, const std::vector<Override>& overrides) {
  LoadedConfig loaded;
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) loaded.origins[field.key] = "default";
  }
  if (!file.empty()) JobReader(file, loaded).read(parse_job(file, read_file(file)));
  for (const auto& override : overrides) apply_override(override, loaded);
  apply_preset(loaded);
  drop_ineffective(overrides, loaded);
  return loaded;
}

}  // namespace tessera::config
