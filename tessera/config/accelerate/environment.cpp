#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"
#include "tessera/base/letters.h"
#include "tessera/config/accelerate/keys.h"
#include "tessera/config/accelerate/normal_value.h"
#include "tessera/config/accelerate/settings.h"
#include "tessera/config/values.h"

namespace tessera::config::accelerate {
namespace {

using Environment = std::map<std::string, std::string>;

/// A section that a variable switches on, and the distributed_type that it means (none:
/// parallelism_config stands beside others).
struct Paradigm {
  const char* distributed_type;
  const char* variable;
  const char* section;
};
constexpr Paradigm kParadigms[] = {
    {"FSDP", "ACCELERATE_USE_FSDP", "fsdp_config"},
    {"DEEPSPEED", "ACCELERATE_USE_DEEPSPEED", "deepspeed_config"},
    {"MEGATRON_LM", "ACCELERATE_USE_MEGATRON_LM", "megatron_lm_config"},
    {"", "ACCELERATE_USE_PARALLELISM_CONFIG", "parallelism_config"},
};

/// The three numbers of fp8_override_linear_precision.
constexpr const char* kFp8Products[] = {"ACCELERATE_FP8_OVERRIDE_FPROP",
                                        "ACCELERATE_FP8_OVERRIDE_DGRAD",
                                        "ACCELERATE_FP8_OVERRIDE_WGRAD"};

bool has_section(const Settings& settings, const std::string& section) {
  return std::ranges::any_of(settings.all(), [&](const Setting& setting) {
    return !setting.is_null && find_key(setting.key)->section == section;
  });
}

// ---- to the ranks ------------------------------------------------------------------------------

std::string python_bool(bool value) { return value ? "True" : "False"; }

/// `value` as a variable has it, mostly as Python's str() shows it (True, 1.0); truth values of
/// fsdp_config and deepspeed_config in lower case.
std::string exported(const Key& key, const std::string& value) {
  if (key.name == "fsdp_reshard_after_forward") return lower_case(value);
  if (key.name == "dynamo_backend") return upper_case(value);
  const bool lower = key.section == "fsdp_config" || key.section == "deepspeed_config";
  if (key.type == KeyType::boolean && !lower) return python_bool(value == "true");
  const bool whole = value.find_first_not_of("0123456789") == std::string::npos;
  return key.type == KeyType::number && whole ? value + ".0" : value;
}

void export_section(const Settings& settings, const std::string& section,
                    Environment& environment) {
  for (const auto& key : keys()) {
    if (key.section != section || key.variable.empty()) continue;
    // What DeepSpeed's keys default to is the ranks' matter.
    const bool given = settings.find(key.dotted()) != nullptr;
    const auto value = section == "deepspeed_config" && !given ? "" : settings.text(key.dotted());
    if (!value.empty()) environment[key.variable] = exported(key, value);
  }
}

/// FSDP1's questionnaire writes the strategy as fsdp_reshard_after_forward; ranks read the other.
void export_strategy(const Settings& settings, Environment& environment) {
  const auto reshard = settings.text("fsdp_config.fsdp_reshard_after_forward");
  if (settings.integer("fsdp_config.fsdp_version") != 1 || reshard == "true" ||
      reshard == "false") {
    return;
  }
  if (settings.find("fsdp_config.fsdp_sharding_strategy") == nullptr) {
    environment["FSDP_SHARDING_STRATEGY"] = reshard;
  }
}

/// Which keys the DeepSpeed plugin must not also find in a DeepSpeed file.
std::string deepspeed_fields(const Settings& settings) {
  std::vector<std::string> fields;
  for (const auto& setting : settings.all()) {
    const auto& key = *find_key(setting.key);
    if (key.section == "deepspeed_config") fields.push_back(key.name);
  }
  const auto* precision = settings.find("mixed_precision");
  if (precision != nullptr && !precision->origin.starts_with("--")) {
    fields.push_back(precision->key);
  }
  return fmt::format("{}", fmt::join(fields, ","));
}

void export_parallelism(const Settings& settings, Environment& environment) {
  environment["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true";
  export_section(settings, "parallelism_config", environment);
  if (settings.integer("parallelism_config.cp_size") == 1) {
    environment.erase("PARALLELISM_CONFIG_CP_COMM_STRATEGY");
  }
  if (settings.integer("parallelism_config.sp_size") == 1) {
    std::erase_if(environment, [](const auto& entry) {
      return entry.first.starts_with("PARALLELISM_CONFIG_SP_SEQ") ||
             entry.first == "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION";
    });
  }
}

void export_fp8(const Settings& settings, Environment& environment) {
  export_section(settings, "fp8_config", environment);
  // "[false, false, true]": one variable for each product.
  auto rest = settings.text("fp8_config.fp8_override_linear_precision");
  for (const auto* variable : kFp8Products) {
    const auto end = rest.find(',');
    const bool kept = rest.substr(0, end).find("rue") != std::string::npos;
    environment.emplace(variable, python_bool(kept));
    rest.erase(0, end == std::string::npos ? end : end + 1);
  }
}

void export_machine(const Settings& settings, bool simple, Environment& environment) {
  const bool cpu = settings.flag("use_cpu") || settings.text("distributed_type") == "MULTI_CPU";
  if (simple || cpu) environment["ACCELERATE_USE_CPU"] = python_bool(cpu);
  if (settings.flag("debug")) environment.emplace("ACCELERATE_DEBUG_MODE", "true");
  if (settings.flag("enable_cpu_affinity")) environment.emplace("ACCELERATE_CPU_AFFINITY", "1");
  const auto gpus = settings.text("gpu_ids");
  if (cpu) {
    environment.emplace("CUDA_VISIBLE_DEVICES",
                        "");  // programs that do not know the variable above
  } else if (!gpus.empty() && gpus != "all") {
    environment["CUDA_VISIBLE_DEVICES"] = gpus;
  }
}

// ---- from a launcher ---------------------------------------------------------------------------

class EnvironmentReader {
 public:
  explicit EnvironmentReader(const GetVariable& get_variable) : get_(get_variable) {}

  Settings read() {
    const bool launched =
        !value("ACCELERATE_MIXED_PRECISION").empty() || !value("ACCELERATE_USE_CPU").empty() ||
        std::ranges::any_of(kParadigms,
                            [&](const Paradigm& paradigm) { return is_on(paradigm.variable); });
    if (!launched) return {};
    read_machines();
    read_distributed_type();
    for (const auto& key : keys()) {
      if (is_used(key)) read(key);
    }
    read_fp8_products();
    drop_implied_strategy();
    return std::move(settings_);
  }

 private:
  std::string value(const std::string& variable) const {
    const auto* found = get_(variable.c_str());
    const std::string text = found == nullptr ? "" : found;
    return text == "None" || text == "auto" ? "" : text;  // Python's for "not given"
  }

  bool is_on(const std::string& variable) const { return lower_case(value(variable)) == "true"; }

  void add(const std::string& key, const std::string& text, const std::string& origin) {
    const RawValue raw{.kind = RawValue::Kind::scalar, .text = text};
    settings_.set({.key = find_key(key)->dotted(),
                   .value = normal_value(*find_key(key), raw, origin),
                   .origin = origin});
  }

  void read_machines() {
    const auto world = value("WORLD_SIZE");
    add("num_processes", world.empty() ? "1" : world,
        world.empty() ? "no WORLD_SIZE" : "WORLD_SIZE");
    if (value("LOCAL_WORLD_SIZE").empty()) return;
    const auto local = parse_integer(value("LOCAL_WORLD_SIZE")).value_or(0);
    const auto all = settings_.integer("num_processes");
    if (local < 1 || all % local != 0) return;
    add("num_machines", fmt::format("{}", all / local), "LOCAL_WORLD_SIZE");
    if (all == local) return;
    if (const auto address = value("MASTER_ADDR"); !address.empty()) {
      add("main_process_ip", address, "MASTER_ADDR");
    }
  }

  void read_distributed_type() {
    for (const auto& paradigm : kParadigms) {
      if (*paradigm.distributed_type == '\0' || !is_on(paradigm.variable)) continue;
      return add("distributed_type", paradigm.distributed_type, paradigm.variable);
    }
    const bool several = settings_.integer("num_processes") > 1;
    const bool cpu = is_on("ACCELERATE_USE_CPU");
    add("distributed_type",
        !several ? "NO"
        : cpu    ? "MULTI_CPU"
                 : "MULTI_GPU",
        cpu ? "ACCELERATE_USE_CPU" : settings_.find("num_processes")->origin);
  }

  bool is_used(const Key& key) const {
    if (key.variable.empty()) return false;
    if (key.section == "fp8_config") return value("ACCELERATE_MIXED_PRECISION") == "fp8";
    const auto* found = std::ranges::find(kParadigms, key.section, &Paradigm::section);
    return found == std::end(kParadigms) || is_on(found->variable);
  }

  void read(const Key& key) {
    const auto text = value(key.variable);
    if (text.empty()) return;
    add(key.dotted(), text, key.variable);
  }

  void read_fp8_products() {
    std::string kept;
    for (const auto* variable : kFp8Products) {
      const auto text = lower_case(value(variable));
      if (text.empty()) return;
      if (!kept.empty()) kept += ',';
      kept += text;
    }
    add("fp8_config.fp8_override_linear_precision", kept, kFp8Products[0]);
  }

  /// Accelerate's launcher says FULL_SHARD whatever else the file says; version 2 does not read it.
  void drop_implied_strategy() {
    const auto* strategy = settings_.find("fsdp_config.fsdp_sharding_strategy");
    if (strategy == nullptr || strategy->value != "FULL_SHARD") return;
    const auto reshard = settings_.text("fsdp_config.fsdp_reshard_after_forward");
    const bool second = settings_.integer("fsdp_config.fsdp_version") == 2;
    if (second || (reshard != "true" && reshard != "false")) {
      settings_.set(
          {.key = strategy->key, .value = "", .origin = strategy->origin, .is_null = true});
    }
  }

  const GetVariable& get_;
  Settings settings_;
};

}  // namespace

std::map<std::string, std::string> environment_of(const Settings& settings) {
  Environment environment;
  const auto type = settings.text("distributed_type");
  const bool simple = type.empty() || type == "NO" || type == "MULTI_CPU";
  const auto precision = settings.text("mixed_precision");
  environment["ACCELERATE_MIXED_PRECISION"] = precision;
  if (precision == "fp8") export_fp8(settings, environment);
  export_machine(settings, simple, environment);
  if (type != "DEEPSPEED") export_section(settings, "dynamo_config", environment);
  for (const auto& paradigm : kParadigms) {
    if (type.empty() || type != paradigm.distributed_type) continue;
    environment[paradigm.variable] = "true";
    export_section(settings, paradigm.section, environment);
  }
  if (type == "FSDP") export_strategy(settings, environment);
  if (type == "DEEPSPEED") environment["ACCELERATE_CONFIG_DS_FIELDS"] = deepspeed_fields(settings);
  if (!simple && has_section(settings, "parallelism_config")) {
    export_parallelism(settings, environment);
  }
  return environment;
}

Settings settings_from_environment(const GetVariable& get_variable) {
  return EnvironmentReader(get_variable).read();
}

}  // namespace tessera::config::accelerate
