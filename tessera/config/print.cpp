#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/config/fields.h"
#include "tessera/config/run_config.h"
#include "tessera/config/values.h"

namespace tessera::config {
namespace {

std::string yaml_line(const Field& field, const RunConfig& config) {
  return fmt::format("  {}: {}", field.name(), yaml_value(field, config));
}

/// Default as the docs show it: an unset override is not a value.
std::string default_text(const Field& field) {
  const auto text = yaml_value(field, RunConfig{});
  return text == "null" ? "unset" : text;
}

/// What a value other than the default needs beside it: "x and y"; "" if nothing.
std::string needs_text(const Field& field) {
  std::vector<std::string> needs;
  for (const auto& need : field.needs) needs.emplace_back(need.what);
  return fmt::format("{}", fmt::join(needs, " and "));
}

std::string kind_of(const Field& field) {
  const auto type = type_name(field);
  if (field.rule.choices.empty()) return type;
  return type == "list" ? "list of" : "one of";
}

}  // namespace

std::string print_config(const LoadedConfig& loaded) {
  // One long list must not push every comment off the screen.
  constexpr size_t kWidest = 48;
  size_t width = 0;
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      const auto length = yaml_line(field, loaded.config).size();
      if (length <= kWidest) width = std::max(width, length);
    }
  }
  std::string out;
  for (const auto& section : sections()) {
    out += section.name + ":\n";
    for (const auto& field : section.fields) {
      const auto origin = loaded.origins.find(field.key);
      out += fmt::format("{:<{}}  # {}\n", yaml_line(field, loaded.config), width,
                         origin == loaded.origins.end() ? "default" : origin->second);
    }
  }
  return out;
}

std::string to_yaml(const RunConfig& config) {
  std::string out;
  for (const auto& section : sections()) {
    out += section.name + ":\n";
    for (const auto& field : section.fields) out += yaml_line(field, config) + "\n";
  }
  return out;
}

std::string config_help() {
  std::string out;
  for (const auto& section : sections()) {
    out += fmt::format("{}: {}\n", section.name, section.meaning);
    for (const auto& field : section.fields) {
      const auto allowed = allowed_values(field), needs = needs_text(field);
      out += fmt::format("  --{:<34} {}\n{:39}({}{}{}; default {}{})\n", field.key, field.meaning,
                         "", kind_of(field), allowed.empty() ? "" : " ", allowed,
                         default_text(field), needs.empty() ? "" : "; needs " + needs);
    }
  }
  return out;
}

std::string config_markdown() {
  std::string out =
      "# The job file\n\n"
      "<!-- Made by `tessera config docs > docs/config.md` from tessera/config/fields.cpp; edit "
      "there. -->\n\n"
      "For those who look up a key of a job file.\n\n"
      "`tessera train JOB.yaml [--section.key=value ...]` reads one YAML file with the sections "
      "below. Every key has a\n"
      "default; a key given on the command line takes the place of the one in the file. Lists are "
      "written `[a, b]`, on\n"
      "the command line also `a,b`; `null` leaves an unset value unset. An unknown key, a wrong "
      "type or an impossible\n"
      "value is an error that names file, line and key, and so is a value that can have no effect: "
      "what it needs beside it\n"
      "stands at the end of its meaning. `--print-config` shows every value and where it came "
      "from.\n";
  for (const auto& section : sections()) {
    out += fmt::format(
        "\n## {}\n\n{}\n\n| key | type | allowed | default | meaning |\n|---|---|---|---|---|\n",
        section.name, section.meaning);
    for (const auto& field : section.fields) {
      const auto needs = needs_text(field);
      out += fmt::format("| `{}` | {} | {} | `{}` | {}{} |\n", field.key, type_name(field),
                         allowed_values(field), default_text(field), field.meaning,
                         needs.empty() ? "" : " (needs " + needs + ")");
    }
  }
  return out;
}

}  // namespace tessera::config
