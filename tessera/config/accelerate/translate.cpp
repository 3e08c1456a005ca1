#include "tessera/config/accelerate/translate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/config/accelerate/deepspeed_file.h"
#include "tessera/config/accelerate/keys.h"
#include "tessera/config/values.h"

namespace tessera::config::accelerate {
namespace {

// ---- what concerns several keys ----------------------------------------------------------------

/// A setting for an error: the one given, else the default.
Setting said(const Settings& settings, const std::string& key) {
  if (const auto* setting = settings.find(key)) return *setting;
  const auto& known = *find_key(key);
  return {.key = known.dotted(), .value = known.default_value, .origin = "default"};
}

LaunchPlan plan_launch(const Settings& settings) {
  const auto type = said(settings, "distributed_type");
  const auto processes = said(settings, "num_processes"), machines = said(settings, "num_machines");
  const auto rank = said(settings, "machine_rank"), cpu = said(settings, "use_cpu");
  LaunchPlan plan{.num_processes = static_cast<int>(settings.integer("num_processes")),
                  .num_machines = static_cast<int>(settings.integer("num_machines")),
                  .machine_rank = static_cast<int>(settings.integer("machine_rank")),
                  .main_process_ip = settings.text("main_process_ip"),
                  .cpu = type.value == "MULTI_CPU" || cpu.value == "true"};
  if (plan.num_processes == -1) {
    if (type.value != "NO" && !type.value.empty()) {
      plan.problem = fmt::format(
          "{}: distributed_type {} needs num_processes; set it there, or --num_processes",
          type.origin, type.value);
    }
    plan.num_processes = plan.problem.empty() ? 1 : plan.num_machines;
  }
  if (type.value == "NO" && plan.num_processes > 1) {
    contradict(type, processes, "NO is one process; set MULTI_CPU or MULTI_GPU for several");
  }
  if (type.value == "MULTI_CPU" && cpu.origin != "default" && cpu.value == "false") {
    contradict(type, cpu, "MULTI_CPU trains on CPUs");
  }
  if (plan.num_processes % plan.num_machines != 0) {
    contradict(processes, machines, "each machine starts the same number");
  }
  if (plan.machine_rank >= plan.num_machines) {
    contradict(rank, machines, "machines are numbered from 0");
  }
  if (plan.num_machines > 1 && plan.main_process_ip.empty()) {
    user_error("{}: num_machines {} needs main_process_ip, the address of machine 0",
               machines.origin, plan.num_machines);
  }
  // Several machines must agree on it beforehand.
  if (plan.num_machines > 1) plan.main_process_port = 29500;
  if (settings.find("main_process_port") != nullptr) {
    plan.main_process_port = static_cast<int>(settings.integer("main_process_port"));
  }
  return plan;
}

/// Sizes of parallelism_config multiply to the number of processes.
void check_sizes(const Settings& settings, const LaunchPlan& plan) {
  double product = 1;  // of five sizes: beyond an integer
  const Setting* first = nullptr;
  for (const auto* size : {"dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size"}) {
    const auto key = std::string("parallelism_config.") + size;
    product *= static_cast<double>(settings.integer(key));
    if (first == nullptr) first = settings.find(key);
  }
  if (first == nullptr || product == plan.num_processes || !plan.problem.empty()) return;
  const auto processes = said(settings, "num_processes");
  user_error("{}: the sizes of parallelism_config multiply to {:.0f}, but num_processes is {} ({})",
             first->origin, product, plan.num_processes, processes.origin);
}

/// A DeepSpeed file says these itself.
void check_beside_file(const Settings& settings) {
  const auto* file = settings.find("deepspeed_config.deepspeed_config_file");
  if (file == nullptr) return;
  for (const auto* name :
       {"gradient_accumulation_steps", "gradient_clipping", "zero_stage",
        "offload_optimizer_device", "offload_param_device", "offload_param_nvme_path",
        "offload_optimizer_nvme_path", "zero3_save_16bit_model"}) {
    const auto* setting = settings.find(std::string("deepspeed_config.") + name);
    if (setting != nullptr) contradict(*setting, *file, "set it in that file alone");
  }
}

/// The file that a setting names: as it stands, else beside the configuration that names it.
std::filesystem::path deepspeed_file(const Setting& setting) {
  const std::filesystem::path file = setting.value;
  const auto origin = setting.origin.substr(0, setting.origin.rfind(':'));
  const auto beside = std::filesystem::path(origin).parent_path() / file;
  if (std::filesystem::exists(file)) return file;
  if (std::filesystem::exists(beside)) return beside.lexically_normal();
  user_error("{}: {}: '{}' not found, neither from here nor beside the configuration",
             setting.origin, setting.key, setting.value);
}

// ---- key by key --------------------------------------------------------------------------------

/// The distributed_type for which a section counts; "": any.
std::string type_of_section(const std::string& section) {
  if (section == "fsdp_config") return "FSDP";
  if (section == "deepspeed_config") return "DEEPSPEED";
  return section == "megatron_lm_config" ? "MEGATRON_LM" : "";
}

const Rules& rules_of(const std::string& section) {
  if (section == "fsdp_config") return fsdp_rules();
  if (section == "deepspeed_config") return deepspeed_rules();
  return section == "megatron_lm_config" ? megatron_lm_rules() : general_rules();
}

/// A default that has no effect here is no loss: it counts as honoured.
Decision unless_default(const Setting& setting, Decision decision) {
  const bool is_default =
      setting.value == find_key(setting.key)->default_value || setting.value == "[]";
  if (decision.verdict == Verdict::not_applicable && is_default) return honoured("the default");
  return decision;
}

Decision decide(const RuleInput& input) {
  const auto& setting = input.setting;
  if (setting.is_null) return honoured("not set");
  const auto& key = *find_key(setting.key);
  const auto type = type_of_section(key.section);
  if (!type.empty() && type != input.type) {
    return not_applicable(fmt::format("counts for distributed_type {}, not {}", type, input.type));
  }
  return unless_default(setting, rules_of(key.section).at(setting.key)(input));
}

/// Keeps the last of several overrides of one key.
void keep_last(std::vector<Override>& job) {
  std::vector<Override> kept;
  for (auto& override : job) {
    std::erase_if(kept, [&](const Override& earlier) { return earlier.key == override.key; });
    kept.push_back(std::move(override));
  }
  job = std::move(kept);
}

/// Appends the overrides in the order of the table: what is said of a section comes after what is
/// said of the whole.
void add_job(const Settings& settings, const std::map<std::string, Decision>& decisions,
             std::vector<Override>& job) {
  for (const auto& key : keys()) {
    const auto decision = decisions.find(key.dotted());
    if (decision == decisions.end() || decision->second.verdict != Verdict::translated) continue;
    const auto& origin = settings.find(key.dotted())->origin;
    for (const auto& [name, value] : decision->second.job) {
      job.push_back({name, value, origin, decision->second.if_effective});
    }
  }
}

/// Withdraws what can have no effect beside the rest of the configuration. What needs something
/// that the job file decides about stays: it is left out there if need be.
void withdraw_ineffective(const Settings& settings, std::map<std::string, Decision>& decisions) {
  std::vector<Override> job;
  add_job(settings, decisions, job);
  const auto config = config_of(job);
  for (auto& [key, decision] : decisions) {
    if (!decision.if_effective) continue;
    const auto needed = needed_for_effect(decision.job.front().first, config);
    const bool decided = std::ranges::any_of(
        job, [&](const Override& override) { return needed.starts_with(override.key + " "); });
    if (!decided) continue;
    decision = unless_default(*settings.find(key), not_applicable("needs " + needed));
  }
}

}  // namespace

RunConfig config_of(std::vector<Override> job) {
  for (auto& override : job) override.if_effective = false;
  return load_run_config("", job).config;
}

std::string note_of(const Decision& decision) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : decision.job) parts.push_back(key + "=" + value);
  if (!decision.note.empty()) parts.push_back(decision.note);
  return fmt::format("{}", fmt::join(parts, "; "));
}

Decision max_grad_norm(const RuleInput& input) {
  return translated({{"optimizer.max_grad_norm", input.setting.value}});
}

void contradict(const Setting& a, const Setting& b, const std::string& why) {
  user_error("{}: {} {} contradicts {} {} ({}): {}", a.origin, a.key, a.value, b.key, b.value,
             b.origin, why);
}

Translation translate(const Settings& settings) {
  auto translation = explain(settings);
  if (!translation.launch.problem.empty()) throw UserError(translation.launch.problem);
  return translation;
}

Translation explain(const Settings& settings) {
  Translation translation{.launch = plan_launch(settings)};
  const auto type = settings.text("distributed_type");
  if (type == "DEEPSPEED") check_beside_file(settings);
  if (type == "FSDP") check_sizes(settings, translation.launch);

  std::map<std::string, Decision> decisions;
  for (const auto& setting : settings.all()) {
    decisions[setting.key] = decide({settings, setting, type, translation.launch});
  }
  withdraw_ineffective(settings, decisions);
  for (const auto& setting : settings.all()) {
    const auto& decision = decisions.at(setting.key);
    translation.ledger.push_back({setting, decision.verdict, note_of(decision)});
  }
  add_job(settings, decisions, translation.job);
  const auto* steps =
      type == "DEEPSPEED"     ? settings.find("deepspeed_config.gradient_accumulation_steps")
      : type == "MEGATRON_LM" ? settings.find("megatron_lm_config.num_micro_batches")
                              : nullptr;
  if (steps != nullptr) translation.accumulation = *steps;
  const auto* file = settings.find("deepspeed_config.deepspeed_config_file");
  if (type == "DEEPSPEED" && file != nullptr) {
    translate_deepspeed_file(deepspeed_file(*file), settings, translation);
  }
  keep_last(translation.job);
  return translation;
}

}  // namespace tessera::config::accelerate
