// tessera env: what somebody who helps must know about this machine and this build.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/cli/commands.h"
#include "tessera/config/accelerate/settings.h"
#include "tessera/config/accelerate/shown_value.h"
#include "tessera/version.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using config::accelerate::shown_value;

/// Beginnings of the variables that decide how a run goes.
constexpr std::array kPrefixes = {"ACCELERATE_",
                                  "CUDA_",
                                  "FSDP_",
                                  "GLOO_",
                                  "GOMP_",
                                  "HF_",
                                  "HUGGINGFACE_",
                                  "KMP_",
                                  "LD_",
                                  "LOCAL_",
                                  "MASTER_",
                                  "MEGATRON_LM_",
                                  "MKL_",
                                  "NCCL_",
                                  "OMP_",
                                  "OMPI_COMM_WORLD_",
                                  "PARALLELISM_CONFIG_",
                                  "PMI_",
                                  "RANK",
                                  "SLURM_JOB_ID",
                                  "SLURM_JOB_NODELIST",
                                  "SLURM_NNODES",
                                  "SLURM_NODEID",
                                  "SLURM_NTASKS",
                                  "SLURM_PROCID",
                                  "TESSERA_",
                                  "TORCH",
                                  "WORLD_SIZE",
                                  "XDG_CACHE_HOME"};

bool matters(const std::string& name) {
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](const char* prefix) { return name.starts_with(prefix); });
}

Json variables() {
  std::map<std::string, std::string> sorted;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const auto end = std::min(text.find('='), text.size() - 1);
    const auto name = text.substr(0, end);
    if (matters(name)) sorted[printable(name)] = printable(shown_value(name, text.substr(end + 1)));
  }
  return sorted;
}

/// "Debian GNU/Linux 12 (bookworm)".
std::string distribution() {
  std::ifstream file("/etc/os-release");
  constexpr std::string_view kKey = "PRETTY_NAME=";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kKey)) continue;
    auto name = line.substr(kKey.size());
    std::erase(name, '"');
    return name;
  }
  return "unknown distribution";
}

Json configuration(const std::string& given) {
  const auto file = given.empty() ? config::accelerate::default_config_file() : fs::path(given);
  Json result{{"file", printable(file.string())}};
  std::error_code unreadable;  // another user's home
  if (given.empty() && !fs::exists(file, unreadable)) return result;
  try {
    Json shown_settings = Json::object();
    const auto settings = config::accelerate::read_settings(file);
    for (const auto& setting : settings.all()) {
      shown_settings[printable(setting.key)] =
          setting.is_null ? "null" : printable(shown_value(setting.key, setting.value));
    }
    result["settings"] = shown_settings;
  } catch (const UserError& error) {
    if (!given.empty()) throw;
    result["error"] = printable(error.what());
  }
  return result;
}

Json facts(const std::string& config_file) {
  utsname system{};
  ::uname(&system);
  const auto machine = this_machine();
  return {{"tessera", TESSERA_VERSION},
          {"libtorch", TESSERA_LIBTORCH_VERSION},
          {"compiler", TESSERA_COMPILER},
          {"backends", TESSERA_BACKENDS},
          {"system", fmt::format("{} {} {}, {}", system.sysname, system.release, system.machine,
                                 distribution())},
          {"cpu", machine.cpu},
          {"cores", machine.num_cores},
          {"isa", machine.isa},
          {"memory_bytes", machine.memory_bytes},
          {"available_bytes", machine.available_bytes},
          {"gpus", machine.gpus},
          {"environment", variables()},
          {"configuration", configuration(config_file)}};
}

std::string listed(const Json& words) {
  if (words.empty()) return "none";
  return fmt::format("{}", fmt::join(words.get<std::vector<std::string>>(), ", "));
}

/// The entries of `object`, one a line.
std::string lines(const Json& object) {
  std::string text;
  for (const auto& [name, value] : object.items()) {
    text += fmt::format("  - {}: {}\n", name, value.get<std::string>());
  }
  return text;
}

std::string text(const Json& facts) {
  const auto word = [&](const char* name) { return facts[name].get<std::string>(); };
  const auto bytes = [&](const char* name) { return format_bytes(facts[name].get<int64_t>()); };
  auto text = fmt::format(
      "- Tessera: {}\n- LibTorch: {} (with which it was made)\n- Compiler: {}\n- Backends: {}\n- "
      "System: {}\n"
      "- CPU: {}, {} cores\n- Of avx2, avx512f, avx512_bf16, amx_bf16: {}\n"
      "- Memory: {}, {} available\n- GPUs: {}\n",
      word("tessera"), word("libtorch"), word("compiler"), word("backends"), word("system"),
      facts["cpu"].empty() ? "unknown" : word("cpu"), facts["cores"].get<int>(),
      listed(facts["isa"]), bytes("memory_bytes"), bytes("available_bytes"), listed(facts["gpus"]));
  const auto& environment = facts["environment"];
  text += environment.empty() ? "- Environment: nothing that matters\n"
                              : "- Environment:\n" + lines(environment);
  const auto& configuration = facts["configuration"];
  text += "- Configuration: " + configuration["file"].get<std::string>();
  if (configuration.contains("error")) {
    return text + "\n  - " + configuration["error"].get<std::string>() + "\n";
  }
  if (!configuration.contains("settings")) return text + " (not there)\n";
  return text + "\n" + lines(configuration["settings"]);
}

}  // namespace

void add_env(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string config_file;
    bool json = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("env", "Show versions, machine and configuration in use");
  command->footer("Tokens and passwords are not shown.\nExample:\n  tessera env > env.txt");
  command->add_option("--config_file,--config-file", arguments->config_file,
                      "Accelerate's file to show; the default one unless given");
  command->add_flag("--json", arguments->json, "As JSON");
  command->callback([arguments, &exit_code] {
    const auto about = facts(arguments->config_file);
    fmt::print("{}", arguments->json ? about.dump(2) + "\n" : text(about));
    exit_code = 0;
  });
}

}  // namespace tessera::cli
