#include "tessera/cli/launch_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/cli/launch_settings.h"
#include "tessera/config/accelerate/keys.h"

namespace tessera::cli {
namespace {

namespace acc = config::accelerate;

/// Options that stand alone; any other option of a boolean takes true or false, as in Accelerate.
const std::set<std::string>& flags() {
  static const std::set<std::string> names{"--cpu",
                                           "--debug",
                                           "--same_network",
                                           "--enable_cpu_affinity",
                                           "--downcast_bf16",
                                           "--tpu_cluster",
                                           "--tpu_use_sudo",
                                           "--fp8_use_autocast_during_eval",
                                           "--dynamo_use_fullgraph",
                                           "--dynamo_use_dynamic",
                                           "--dynamo_use_regional_compilation"};
  return names;
}

std::string group_of(const acc::Key& key) {
  static const std::map<std::string, std::string> of_section{{"", "Accelerate"},
                                                             {"fsdp_config", "FSDP"},
                                                             {"deepspeed_config", "DeepSpeed"},
                                                             {"parallelism_config", "Parallelism"},
                                                             {"megatron_lm_config", "Megatron-LM"},
                                                             {"fp8_config", "FP8"},
                                                             {"dynamo_config", "TorchDynamo"},
                                                             {"mpirun_config", "MPI"}};
  const bool tpu = key.name.starts_with("tpu_") || key.name == "main_training_function" ||
                   key.name == "downcast_bf16";
  return tpu ? "TPU" : of_section.at(key.section);
}

/// Checks the value that is written behind a flag: CLI11 would count any number.
CLI::Validator truth_value() {
  const auto problem = [](const std::string& text) -> std::string {
    static const std::set<std::string> known{"true", "false", "on", "off", "yes", "no", "1", "0"};
    return known.contains(text) ? "" : fmt::format("expected true or false, got '{}'", text);
  };
  return {problem, ""};
}

/// Refuses an empty file name: a variable of a shell that is not set must not mean the default
/// file.
CLI::Validator file_name() {
  const auto problem = [](const std::string& text) -> std::string {
    return text.empty() ? "expected a file, got nothing" : "";
  };
  return {problem, ""};
}

/// "--fsdp_version" -> "--fsdp_version,--fsdp-version".
std::string both_spellings(const std::string& option) {
  auto dashed = option;
  std::ranges::replace(dashed, '_', '-');
  return dashed == option ? option : option + "," + dashed;
}

/// What stands behind the option's name in the help.
std::string value_words(const acc::Key& key) {
  constexpr size_t kLongest = 50;
  auto choices = fmt::format("{}", fmt::join(key.choices, "|"));
  if (!choices.empty() && choices.size() <= kLongest) return choices;
  switch (key.type) {
    case acc::KeyType::boolean:
      return "true|false";
    case acc::KeyType::integer:
      return "INT";
    case acc::KeyType::number:
      return "FLOAT";
    case acc::KeyType::text:
      return "TEXT";
    case acc::KeyType::list:
      return "A,B,..";
  }
  return "";
}

/// Shows each name in the first of its spellings, and what stands behind the options.
class LaunchFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: tessera launch [OPTIONS] PROGRAM [ARGUMENTS]\n";
  }
  std::string make_option_name(const CLI::Option* option, bool) const override {
    std::vector<std::string> names;
    std::set<std::string> seen;
    for (const auto& name : option->get_snames()) names.push_back("-" + name);
    for (const auto& name : option->get_lnames()) {
      auto spelling = name;
      std::ranges::replace(spelling, '-', '_');
      if (seen.insert(spelling).second) names.push_back("--" + name);
    }
    return fmt::format("{}", fmt::join(names, ","));
  }
};

/// Adds options in groups, of which only the first is shown until all are asked for.
class OptionAdder {
 public:
  OptionAdder(CLI::App& command, AccelerateRequest& request)
      : command_(command), request_(request) {}

  void add_keys() {
    for (const auto& key : acc::keys()) {
      if (!key.option.empty()) add(key);
    }
  }
  void add_types();
  void add_own();
  void add_without_effect();
  void add_sagemaker();
  void add_help_all();

 private:
  void add(const acc::Key& key);
  void put(CLI::Option* option, const std::string& group) {
    auto sentence = option->get_description();
    sentence[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(sentence[0])));
    option->description(sentence);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    option->group(group == "Accelerate" ? group : "");
    grouped_->emplace_back(option, group);
  }

  CLI::App& command_;
  AccelerateRequest& request_;
  using Grouped = std::vector<std::pair<CLI::Option*, std::string>>;
  std::shared_ptr<Grouped> grouped_ = std::make_shared<Grouped>();
};

void OptionAdder::add(const acc::Key& key) {
  const auto names = both_spellings(key.option);
  const auto set = [&request = request_, name = key.dotted(),
                    option = key.option](const std::string& value) {
    request.settings.set(checked({.key = name, .value = value, .origin = option}));
  };
  if (flags().contains(key.option)) {
    put(command_
            .add_flag_function(
                names, [set](int64_t count) { set(count > 0 ? "true" : "false"); }, key.meaning)
            ->check(truth_value()),
        group_of(key));
    return;
  }
  auto* option = command_.add_option_function<std::string>(names, set, key.meaning);
  put(option->type_name(value_words(key)), group_of(key));
  if (key.type != acc::KeyType::list) return;
  option->delimiter(',')->multi_option_policy(CLI::MultiOptionPolicy::Join);
}

/// Adds the options that choose an engine: at most one of them, and of --cpu.
void OptionAdder::add_types() {
  const auto add_type = [&](const char* option, const char* type, const char* meaning) {
    const acc::Setting chosen{.key = "distributed_type", .value = type, .origin = option};
    const auto choose = [&request = request_, chosen](int64_t count) {
      if (count < 0) return;  // --use_fsdp=false
      if (const auto* cpu = asked_cpu(request)) contradict(*cpu, chosen);
      if (const auto* other = request.settings.find(chosen.key)) contradict(*other, chosen);
      request.settings.set(chosen);
    };
    put(command_.add_flag_function(both_spellings(option), choose, meaning)->check(truth_value()),
        "Accelerate");
  };
  add_type("--multi_gpu", "MULTI_GPU", "a copy of the model on each GPU");
  add_type("--use_fsdp", "FSDP", "parameters split over ranks, see --fsdp_*");
  add_type("--use_deepspeed", "DEEPSPEED", "as DeepSpeed's ZeRO splits them, see --zero_stage, ..");
  add_type("--use_megatron_lm", "MEGATRON_LM", "as Megatron-LM splits them, see --megatron_lm_*");
  add_type("--tpu", "XLA", "train on TPUs");
  put(command_.add_flag(both_spellings("--use_parallelism_config"), request_.use_parallelism_config,
                        "as --parallelism_config_* say, which hold without it, too"),
      "Accelerate");
}

/// Adds the options that only the launcher is told, not the configuration file.
void OptionAdder::add_own() {
  put(command_
          .add_option("--config_file,--config-file", request_.config_file,
                      "Accelerate's YAML or JSON; else the default one, if there is one")
          ->check(file_name()),
      "Accelerate");
  put(command_.add_flag("-q,--quiet", request_.quiet, "say nothing of the configuration"),
      "Accelerate");
  put(command_.add_flag("--strict", request_.strict, "refuse what has no effect here"),
      "Accelerate");
  put(command_
          .add_option(both_spellings("--num_cpu_threads_per_process"), request_.threads_per_process,
                      "OMP_NUM_THREADS of the ranks")
          ->check(CLI::Range(1, 4096))
          ->type_name("INT"),
      "Accelerate");
}

void OptionAdder::add_without_effect() {
  const auto idle = [&](const std::string& option, const char* meaning, const char* why) {
    const auto name = option.substr(option.rfind("--"));
    const auto note = [&request = request_, name, why](const std::string& value) {
      request.idle.push_back({.setting = {.key = name.substr(2), .value = value, .origin = name},
                              .verdict = acc::Verdict::not_applicable,
                              .note = why});
    };
    put(command_.add_option_function<std::string>(both_spellings(option), note, meaning)
            ->type_name("TEXT"),
        "torchrun");
  };
  idle("--rdzv_conf", "settings of the rendezvous", "the rendezvous has no settings");
  idle("--monitor_interval", "seconds between looks at the ranks", "an end is noticed at once");
  idle("-t,--tee", "which streams are shown and kept",
       "all output is shown, and kept where --log-dir says");
}

/// Adds the keys of an Amazon account. There is no launcher for it; saying so is the translation's.
void OptionAdder::add_sagemaker() {
  for (const char* option : {"--aws_access_key_id", "--aws_secret_access_key"}) {
    const auto choose = [&request = request_, option](const std::string&) {
      request.settings.set(
          {.key = "compute_environment", .value = "AMAZON_SAGEMAKER", .origin = option});
    };
    put(command_
            .add_option_function<std::string>(both_spellings(option), choose,
                                              "key of an Amazon account")
            ->type_name("TEXT"),
        "Amazon SageMaker");
  }
}

void OptionAdder::add_help_all() {
  const auto show = [grouped = grouped_](int64_t) {
    for (const auto& [option, group] : *grouped) option->group(group);
    throw CLI::CallForHelp();
  };
  command_.add_flag_function("--help_all,--help-all", show,
                             "Print the options of FSDP, DeepSpeed, .. as well and exit");
}

// ---- launch ------------------------------------------------------------------------------------

void check_devices(const acc::Settings& settings, const acc::LaunchPlan& plan) {
  const auto* type = settings.find("distributed_type");
  if (plan.cpu || type->value == "NO" || !this_machine().gpus.empty()) return;
  const char* hint = !type->origin.starts_with("--") ? "--cpu tries it here"
                     : type->value == "MULTI_GPU"
                         ? "give --cpu in its place"
                         : "a --config_file with use_cpu: true tries it here";
  user_error("{}: distributed_type: {} needs GPUs, and this machine has none; {}", type->origin,
             type->value, hint);
}

void set_machines(const acc::Settings& settings, const acc::LaunchPlan& plan,
                  launch::LaunchOptions& launch) {
  if (plan.num_machines > 1 && settings.find("machine_rank") == nullptr) {
    user_error("launch: {} machines need --machine_rank as well, another on each",
               plan.num_machines);
  }
  launch.num_processes = plan.num_processes / plan.num_machines;
  launch.num_nodes = plan.num_machines;
  launch.node_rank = plan.machine_rank;
  if (!plan.main_process_ip.empty()) launch.master_addr = plan.main_process_ip;
  launch.master_port = plan.main_process_port;
  launch.other_port_if_busy = true;
}

/// Tells what has no effect: all keys of the file in one line, each option in one of its own.
void tell_idle(const std::vector<acc::LedgerEntry>& ledger, const std::string& file,
               const char* command) {
  int num_idle = 0;
  for (const auto& [setting, verdict, note] : ledger) {
    if (verdict != acc::Verdict::not_applicable) continue;
    const bool option = setting.origin.starts_with('-');
    num_idle += option ? 0 : 1;
    if (option)
      fmt::print(stderr, "{}: {} has no effect here: {}\n", command, setting.origin, note);
  }
  if (num_idle == 0) return;
  fmt::print(stderr, "{}: {} no effect here; tessera config show {} tells why\n", command,
             num_idle == 1 ? "1 key has" : fmt::format("{} keys have", num_idle), file);
}

void set_threads(const AccelerateRequest& request, bool cpu, launch::LaunchOptions& launch) {
  auto threads = request.threads_per_process.value_or(0);
  if (threads == 0 && cpu && std::getenv("OMP_NUM_THREADS") == nullptr) {
    threads = static_cast<int>(this_machine().num_cores / launch.num_processes);
  }
  if (threads > 0) launch.environment["OMP_NUM_THREADS"] = fmt::format("{}", threads);
}

acc::LaunchPlan configure(const AccelerateRequest& request, const std::string& file,
                          launch::LaunchOptions& launch) {
  if (!file.empty() && request.config_file.empty() && !request.quiet) {
    fmt::print(stderr, "tessera launch: configured by {}; --config_file names another\n", file);
  }
  const auto [settings, translation] = accelerate_run(request, file, "tessera launch");
  set_machines(settings, translation.launch, launch);
  launch.environment = acc::environment_of(settings);
  return translation.launch;
}

}  // namespace

AccelerateRun accelerate_run(const AccelerateRequest& request, const std::string& file,
                             const char* command) {
  auto settings = settings_of(request, file);
  auto translation = acc::translate(settings);
  acc::check_ledger(translation.ledger, request.strict);
  check_devices(settings, translation.launch);
  if (!request.quiet) tell_idle(translation.ledger, file, command);
  return {std::move(settings), std::move(translation)};
}

void add_accelerate_options(CLI::App& command, AccelerateRequest& request) {
  command.formatter(std::make_shared<LaunchFormatter>());
  OptionAdder adder(command, request);
  adder.add_own();
  adder.add_keys();
  adder.add_types();
  adder.add_without_effect();
  adder.add_sagemaker();
  adder.add_help_all();
}

bool apply(const AccelerateRequest& request, launch::LaunchOptions& launch) {
  acc::check_ledger(request.idle, request.strict);
  if (!request.quiet) tell_idle(request.idle, "", "tessera launch");
  const auto file = configuration_file(request);
  const bool configured =
      !file.empty() || !request.settings.all().empty() || request.use_parallelism_config;
  const bool cpu = configured && configure(request, file, launch).cpu;
  set_threads(request, cpu, launch);
  return configured;
}

}  // namespace tessera::cli
