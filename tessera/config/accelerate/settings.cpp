#include "tessera/config/accelerate/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/base/letters.h"
#include "tessera/config/accelerate/keys.h"
#include "tessera/config/accelerate/normal_value.h"
#include "tessera/config/values.h"

namespace tessera::config::accelerate {
namespace {

const Key& known(const std::string& key) {
  const auto* found = find_key(key);
  if (found == nullptr) {
    std::fprintf(stderr, "tessera: no such key: %s\n", key.c_str());
    std::abort();  // a slip in our own code
  }
  return *found;
}

/// The value in the form that its type asks for; UserError if it has no such form.
template <typename Parse>
auto converted(const Settings& settings, const std::string& key, const char* expected,
               const Parse& parse) {
  const auto* setting = settings.find(key);
  const auto text = settings.text(key);
  const auto value = parse(text);
  if (!value) {
    user_error("{}: {}: expected {}, got {}", setting == nullptr ? "default" : setting->origin, key,
               expected, quoted(text));
  }
  return *value;
}

/// `text` in quotes if YAML 1.1 (PyYAML, which Accelerate reads with) would take it for something
/// else.
std::string yaml_text(const std::string& text) {
  const bool plain = std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./,").find(static_cast<char>(c)) != std::string_view::npos;
  });
  const auto lower = lower_case(text);
  const bool word = parse_bool(lower) || lower == "null" || lower == "y" || lower == "n";
  if (plain && !word && std::isalpha(static_cast<unsigned char>(text[0])) != 0) return text;
  return in_yaml_quotes(text);
}

std::string yaml_value(const Key& key, const Setting& setting) {
  if (setting.is_null) return "null";
  // A text that may be a truth value stands as one, as in Accelerate's own files.
  const bool is_truth = std::ranges::find(key.choices, "true") != key.choices.end() &&
                        parse_bool(setting.value).has_value();
  return key.type == KeyType::text && !is_truth ? yaml_text(setting.value) : setting.value;
}

}  // namespace

void Settings::set(Setting setting) {
  known(setting.key);
  const auto same = std::ranges::find(settings_, setting.key, &Setting::key);
  if (same == settings_.end()) {
    settings_.push_back(std::move(setting));
  } else {
    *same = std::move(setting);
  }
}

const Setting* Settings::find(const std::string& key) const {
  const auto found = std::ranges::find(settings_, known(key).dotted(), &Setting::key);
  return found == settings_.end() || found->is_null ? nullptr : &*found;
}

std::string Settings::text(const std::string& key) const {
  const auto* setting = find(key);
  return setting == nullptr ? known(key).default_value : setting->value;
}

bool Settings::flag(const std::string& key) const {
  return converted(*this, key, "true or false", [](const std::string& text) {
    return text.empty() ? std::optional(false) : parse_bool(text);
  });
}

int64_t Settings::integer(const std::string& key) const {
  return converted(*this, key, "a whole number",
                   [](const std::string& text) { return parse_integer(text); });
}

double Settings::number(const std::string& key) const {
  return converted(*this, key, "a number",
                   [](const std::string& text) { return parse_number(text); });
}

std::filesystem::path default_config_file() {
  const auto variable = [](const char* name) {
    const auto* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  auto home = variable("HF_HOME");
  if (home.empty()) {
    const auto cache = variable("XDG_CACHE_HOME");
    home = (cache.empty() ? variable("HOME") / ".cache" : cache) / "huggingface";
  }
  return home / "accelerate" / "default_config.yaml";
}

std::string to_yaml(const Settings& settings) {
  std::string out, section;
  // A section's keys stand together, in the order of the table.
  for (const auto& key : keys()) {
    const auto found = std::ranges::find(settings.all(), key.dotted(), &Setting::key);
    if (found == settings.all().end()) continue;
    if (key.section != section) out += key.section + ":\n";
    section = key.section;
    out +=
        fmt::format("{}{}: {}\n", section.empty() ? "" : "  ", key.name, yaml_value(key, *found));
  }
  return out;
}

}  // namespace tessera::config::accelerate
