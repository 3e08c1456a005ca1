// What a user of Accelerate asked for: read from its YAML or JSON file, from the options of
// `tessera launch`, or from the environment that a launcher made.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::config::accelerate {

struct Setting {
  std::string key;       ///< dotted, as in keys(): "fsdp_config.fsdp_version"
  std::string value;     ///< as YAML writes it; a list as [a, b]; "" for an explicit null
  std::string origin;    ///< "default_config.yaml:12", "--fsdp_version", "FSDP_VERSION"
  bool is_null = false;  ///< written, but null
};

/// Settings in the order in which they were first given; a later value of a key takes its place.
class Settings {
 public:
  void set(Setting setting);
  const Setting* find(const std::string& key) const;  ///< nullptr: not given, or null
  const std::vector<Setting>& all() const { return settings_; }

  /// The value given, else the key's default; "" if there is neither. Aborts on an unknown key.
  std::string text(const std::string& key) const;
  /// The same, converted. UserError with the origin if it is not of the type.
  bool flag(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;

 private:
  std::vector<Setting> settings_;
};

/// $HF_HOME/accelerate/default_config.yaml (HF_HOME: else $XDG_CACHE_HOME/huggingface, else
/// ~/.cache/huggingface); it need not exist.
std::filesystem::path default_config_file();

/// Reads YAML, or JSON under whatever name. Prefixes are put on, old keys (fp16, dynamo_backend)
/// get their present names, every value is checked against keys(). UserError, one line with file,
/// line and nearest right key: malformed, unknown keys at any depth, wrong types, no
/// distributed_type.
Settings read_settings(const std::filesystem::path& file);

using GetVariable = std::function<const char*(const char* name)>;  ///< as std::getenv

/// What a launcher (ours or Accelerate's) told this process; nothing if ACCELERATE_* and the like
/// are unset.
Settings settings_from_environment(const GetVariable& get_variable);

/// The variables with which Accelerate's launcher starts its ranks, for these settings.
std::map<std::string, std::string> environment_of(const Settings& settings);

/// The settings as Accelerate's YAML; read_settings reads it back to the same.
std::string to_yaml(const Settings& settings);

}  // namespace tessera::config::accelerate
