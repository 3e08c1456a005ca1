#include "tessera/config/accelerate/show.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/config/accelerate/deepspeed_file.h"
#include "tessera/config/accelerate/deepspeed_keys.h"
#include "tessera/config/accelerate/shown_value.h"
#include "tessera/config/fields.h"
#include "tessera/config/values.h"
#include "tessera/config/yaml_document.h"

namespace tessera::config::accelerate {
namespace {

/// A line of the native configuration.
struct NativeLine {
  std::string key;  ///< dotted
  std::string value, origin;
  bool comment = false;  ///< not a value by itself
};

std::vector<NativeLine> native_lines(const Translation& translation) {
  std::vector<NativeLine> lines;
  const auto config = config_of(translation.job);
  for (const auto& override : translation.job) {
    const auto& field = *find_field(override.key);
    const auto value = yaml_value(field, config);
    if (value == yaml_value(field, RunConfig{})) continue;
    // Alone it would be an error.
    const auto needed = override.if_effective ? needed_for_effect(override.key, config) : "";
    const auto origin = needed.empty() ? override.origin : override.origin + ", with " + needed;
    lines.push_back({override.key, value, origin, !needed.empty()});
  }
  if (const auto& steps = translation.accumulation; steps && steps->value != "1") {
    lines.push_back(
        {"train.micro_batch", "share of a rank / " + steps->value, steps->origin, true});
  }
  return lines;
}

std::string section_of(const NativeLine& line) { return line.key.substr(0, line.key.find('.')); }

}  // namespace

FileKind kind_of(const std::filesystem::path& file) {
  const auto root = parse_yaml(file.string(), read_file(file));
  if (!root.IsMap()) return FileKind::accelerate;
  bool accelerate = false, deepspeed = false, some_of_job = false, all_of_job = root.size() > 0;
  const bool is_json = root.Style() == YAML::EmitterStyle::Flow;
  for (const auto& entry : root) {
    const auto name = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const bool of_job =
        std::ranges::any_of(sections(), [&](const auto& section) { return section.name == name; });
    all_of_job = all_of_job && of_job;
    some_of_job = some_of_job || of_job;
    accelerate = accelerate || name == "distributed_type" || name == "compute_environment";
    deepspeed = deepspeed || find_deepspeed_file_key(name) != nullptr ||
                (is_json && is_deepspeed_section(name));
  }
  if (accelerate) return FileKind::accelerate;
  if (all_of_job && file.extension() != ".json") return FileKind::job;
  if (deepspeed) return FileKind::deepspeed;
  return some_of_job && !is_json ? FileKind::job : FileKind::accelerate;
}

Translation translate_file(const std::filesystem::path& file) {
  if (kind_of(file) == FileKind::accelerate) return explain(read_settings(file));
  Translation translation{.launch = {.num_processes = 0}};  // it does not say
  translate_deepspeed_file(file, Settings{}, translation);
  return translation;
}

std::string native_yaml(const Translation& translation) {
  const auto lines = native_lines(translation);
  std::string out;
  for (const auto& section : sections()) {
    const auto here = [&](const NativeLine& line) { return section_of(line) == section.name; };
    const auto holds = [&](const NativeLine& line) { return here(line) && !line.comment; };
    if (std::ranges::none_of(lines, here)) continue;
    // A section without values is no section.
    out += fmt::format("{}{}:\n", std::ranges::any_of(lines, holds) ? "" : "# ", section.name);
    for (const auto& line : lines) {
      if (!here(line)) continue;
      const auto text = fmt::format("{}  {}: {}", line.comment ? "#" : "",
                                    line.key.substr(line.key.find('.') + 1), line.value);
      out += fmt::format("{:<38}  # {}\n", text, line.origin);
    }
  }
  return out;
}

std::string launch_line(const LaunchPlan& plan) {
  const auto here = plan.num_processes / plan.num_machines;
  auto line = "tessera launch -n " + (here == 0 ? "NUM" : fmt::format("{}", here));
  if (plan.num_machines > 1) {
    line += fmt::format(" --nnodes={} --node-rank={} --master-addr={}", plan.num_machines,
                        plan.machine_rank, plan.main_process_ip);
  }
  if (plan.main_process_port != 0) line += fmt::format(" --master-port={}", plan.main_process_port);
  return line + (plan.cpu ? " --cpu PROGRAM" : " PROGRAM");
}

std::string show_text(const Translation& translation) {
  auto out = ledger_text(translation.ledger);
  const auto native = native_yaml(translation);
  out += native.empty() ? "\nA job file need say nothing: all of it is the default.\n"
                        : "\nThe same in a job file:\n\n" + native;
  const auto refused =
      std::ranges::count(translation.ledger, Verdict::refused, &LedgerEntry::verdict);
  if (refused > 0) {
    return out + fmt::format("\nNothing is started with it: {} {} refused.\n", refused,
                             refused == 1 ? "key is" : "keys are");
  }
  if (!translation.launch.problem.empty()) {
    return out + "\nNothing is started with it: num_processes is missing.\n";
  }
  return out + "\nStarted as: " + launch_line(translation.launch) + "\n";
}

nlohmann::ordered_json show_json(const Translation& translation) {
  nlohmann::ordered_json out;
  out["ledger"] = nlohmann::ordered_json::array();
  for (const auto& [setting, verdict, note] : translation.ledger) {
    nlohmann::ordered_json value;
    if (!setting.is_null) value = shown_value(setting.key, setting.value);
    out["ledger"].push_back({{"key", setting.key},
                             {"value", value},
                             {"origin", setting.origin},
                             {"verdict", verdict_name(verdict)},
                             {"note", note}});
  }
  out["job"] = nlohmann::ordered_json::object();
  for (const auto& line : native_lines(translation)) {
    if (!line.comment) out["job"][line.key] = {{"value", line.value}, {"origin", line.origin}};
  }
  const auto& plan = translation.launch;
  const bool counted = plan.problem.empty();
  out["launch"] = {
      {"num_processes", counted ? nlohmann::ordered_json(plan.num_processes) : nullptr},
      {"num_machines", plan.num_machines},
      {"machine_rank", plan.machine_rank},
      {"main_process_ip", plan.main_process_ip},
      {"main_process_port", plan.main_process_port},
      {"cpu", plan.cpu}};
  return out;
}

}  // namespace tessera::config::accelerate
