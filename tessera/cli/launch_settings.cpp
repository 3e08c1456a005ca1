#include "tessera/cli/launch_settings.h"

#include <algorithm>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/config/accelerate/normal_value.h"

namespace tessera::cli {

namespace acc = config::accelerate;

void contradict(const acc::Setting& one, const acc::Setting& other) {
  user_error("launch: {} and {} contradict each other; give one of them", one.origin, other.origin);
}

acc::Setting checked(acc::Setting setting) {
  const config::RawValue raw{.kind = config::RawValue::Kind::scalar, .text = setting.value};
  setting.value = acc::normal_value(*acc::find_key(setting.key), raw, setting.origin);
  return setting;
}

const acc::Setting* asked_cpu(const AccelerateRequest& request) {
  const auto* cpu = request.settings.find("use_cpu");
  return cpu != nullptr && cpu->value == "true" ? cpu : nullptr;
}

std::string configuration_file(const AccelerateRequest& request) {
  if (!request.config_file.empty()) return request.config_file;
  if (asked_cpu(request) != nullptr) return "";  // it does without, as there
  const auto file = acc::default_config_file();
  std::error_code unreadable;  // another user's home
  return std::filesystem::exists(file, unreadable) ? file.string() : "";
}

namespace {

void set_num_processes(const AccelerateRequest& request, bool from_file, acc::Settings& settings) {
  if (request.processes_per_machine) {
    const auto total = *request.processes_per_machine * settings.integer("num_machines");
    const acc::Setting own{
        .key = "num_processes", .value = fmt::format("{}", total), .origin = "-n"};
    if (const auto* other = request.settings.find("num_processes")) contradict(own, *other);
    settings.set(checked(own));
  } else if (!from_file && settings.find("num_processes") == nullptr) {
    const auto gpus = settings.flag("use_cpu") ? 0 : this_machine().gpus.size();
    settings.set({.key = "num_processes",
                  .value = fmt::format("{}", std::max<size_t>(gpus, 1)),
                  .origin = "GPUs of this machine"});
  }
}

/// Several processes that the command line asks for work together, whatever the file says of one;
/// and --cpu tries a configuration for other devices on CPUs.
void set_distributed_type(const AccelerateRequest& request, acc::Settings& settings) {
  const auto* type = settings.find("distributed_type");
  const auto* asked_total = request.settings.find("num_processes");
  const bool several = settings.integer("num_processes") > 1;
  const bool asked_several = several && (request.processes_per_machine || asked_total != nullptr);
  const auto set = [&](const char* key, const char* value, const std::string& origin) {
    settings.set({.key = key, .value = value, .origin = origin});
  };
  if (type == nullptr || (type->value == "NO" && asked_several)) {
    const auto origin = settings.find("num_processes")->origin;
    const bool on_cpu = settings.flag("use_cpu") || this_machine().gpus.empty();
    set("distributed_type", !several ? "NO" : on_cpu ? "MULTI_CPU" : "MULTI_GPU", origin);
    const bool asked = request.settings.find("use_cpu") != nullptr;  // --cpu=false
    if (several && on_cpu && !asked) set("use_cpu", "true", origin);
  } else if (asked_cpu(request) != nullptr &&
             (type->value.starts_with("MULTI_") || type->value == "XLA")) {
    set("distributed_type", "MULTI_CPU", asked_cpu(request)->origin);
  }
}

}  // namespace

acc::Settings settings_of(const AccelerateRequest& request, const std::string& file) {
  auto settings = file.empty() ? acc::Settings() : acc::read_settings(file);
  for (const auto& setting : request.settings.all()) settings.set(setting);
  for (const auto& setting : request.own) {
    if (const auto* other = request.settings.find(setting.key)) contradict(setting, *other);
    settings.set(checked(setting));
  }
  set_num_processes(request, !file.empty(), settings);
  set_distributed_type(request, settings);
  const bool has_sizes = std::ranges::any_of(settings.all(), [](const acc::Setting& setting) {
    return setting.key.starts_with("parallelism_config.");
  });
  if (request.use_parallelism_config && !has_sizes) {
    user_error(
        "launch: --use_parallelism_config needs sizes, such as "
        "--parallelism_config_dp_shard_size=2");
  }
  return settings;
}

}  // namespace tessera::cli
