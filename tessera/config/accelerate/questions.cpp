#include "tessera/config/accelerate/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "tessera/config/accelerate/keys.h"
#include "tessera/config/accelerate/question_context.h"
#include "tessera/config/values.h"
#include "tessera/models/shape.h"

namespace tessera::config::accelerate {
namespace {

Question number_question(std::string name, std::string text, int64_t default_value, int64_t low,
                         int64_t high) {
  return {.name = std::move(name),
          .text = std::move(text),
          .default_value = std::to_string(default_value),
          .problem = [low, high](const std::string& answer) -> std::string {
            const auto number = whole_number(answer);
            if (number && *number >= low && *number <= high) return "";
            return fmt::format("expected a whole number from {} to {}", low, high);
          }};
}

Question yes_no_question(std::string name, std::string text, std::string if_no,
                         std::string if_yes) {
  return {.name = std::move(name),
          .text = std::move(text),
          .choices = {{"false", "no", std::move(if_no)}, {"true", "yes", std::move(if_yes)}},
          .default_value = "false"};
}

// The questions, each nothing where it does not matter.

using MaybeQuestion = std::optional<Question>;

MaybeQuestion ask_device(const Context& context) {
  const auto& machine = context.here.machine;
  if (machine.gpus.empty() && !context.here.slurm) return std::nullopt;
  const auto gpus = machine.gpus.empty()
                        ? std::string("of the nodes that Slurm hands out")
                        : fmt::format("{} here: {}", machine.gpus.size(), machine.gpus.front());
  return Question{.name = "device",
                  .text = "What is the model trained on?",
                  .choices = {{"gpu", "GPUs", gpus},
                              {"cpu", "CPUs", fmt::format("{} cores here", machine.num_cores)}},
                  .default_value = machine.gpus.empty() ? "cpu" : "gpu"};
}

MaybeQuestion ask_num_machines(const Context&) {
  return number_question("num_machines", "How many machines take part?", 1, 1, 65536);
}

/// Does the file name its machines? Not under Slurm, where each job has other ones.
bool names_machines(const Context& context) {
  return context.num_machines() > 1 && !context.here.slurm;
}

MaybeQuestion ask_machine_rank(const Context& context) {
  if (!names_machines(context)) return std::nullopt;
  return number_question("machine_rank", "Which of them is this (0: the first)?", 0, 0,
                         context.num_machines() - 1);
}

MaybeQuestion ask_main_process_ip(const Context& context) {
  if (!names_machines(context)) return std::nullopt;
  return Question{.name = "main_process_ip",
                  .text = "What is the host name or address of the first machine?",
                  .problem = [](const std::string& answer) -> std::string {
                    if (!answer.empty() && answer.find_first_of(" \t/") == std::string::npos) {
                      return "";
                    }
                    return "expected a name or an address, such as 10.0.0.1";
                  }};
}

MaybeQuestion ask_main_process_port(const Context& context) {
  if (!names_machines(context)) return std::nullopt;
  return number_question("main_process_port", "Which port there is free?", 29500, 1, 65535);
}

MaybeQuestion ask_num_processes(const Context& context) {
  const auto machines = context.num_machines();
  const auto gpus = context.on_gpu() ? context.num_gpus() : 0;
  const auto each = gpus > 0           ? gpus
                    : context.on_gpu() ? 1
                                       : std::max<int64_t>(1, context.here.machine.num_cores / 2);
  const auto most = gpus > 0 ? gpus * machines : std::max<int64_t>(65536, machines);
  auto question = number_question(
      "num_processes",
      machines > 1 ? "How many processes, over all machines?" : "How many processes?",
      each * machines, machines, most);
  question.problem = [in_range = question.problem, machines](const std::string& answer) {
    auto problem = in_range(answer);
    if (!problem.empty() || *whole_number(answer) % machines == 0) return problem;
    return fmt::format("expected a multiple of {}, as each machine starts equally many", machines);
  };
  return question;
}

MaybeQuestion ask_gpu_ids(const Context& context) {
  const auto wanted = context.num_processes(), gpus = context.num_gpus();
  if (!context.on_gpu() || context.num_machines() > 1 || wanted >= gpus) return std::nullopt;
  std::string first = "0";
  for (int64_t gpu = 1; gpu < wanted; ++gpu) first += fmt::format(",{}", gpu);
  return Question{.name = "gpu_ids",
                  .text = fmt::format("Which {} of the {} GPUs?", wanted, gpus),
                  .default_value = first,
                  .problem = [wanted, gpus](const std::string& answer) -> std::string {
                    std::set<int64_t> ids;
                    for (size_t begin = 0; begin <= answer.size();) {
                      const auto end = std::min(answer.find(',', begin), answer.size());
                      const auto id = whole_number(answer.substr(begin, end - begin));
                      if (!id || *id < 0 || *id >= gpus || !ids.insert(*id).second) break;
                      if (end == answer.size() && static_cast<int64_t>(ids.size()) == wanted)
                        return "";
                      begin = end + 1;
                    }
                    return fmt::format("expected {} different numbers from 0 to {}, such as 0,1",
                                       wanted, gpus - 1);
                  }};
}

MaybeQuestion ask_model(const Context&) {
  const auto presets = models::model_preset_names();
  return Question{.name = "model",
                  .text =
                      "How many parameters has the model (7B, 350M, or a name such as "
                      "llama-3-8b; empty: unknown)?",
                  .problem = [presets](const std::string& answer) -> std::string {
                    if (answer.empty() || count_from(answer) ||
                        std::find(presets.begin(), presets.end(), answer) != presets.end()) {
                      return "";
                    }
                    return fmt::format("expected a number such as 7B, or one of {}",
                                       fmt::join(presets, ", "));
                  }};
}

MaybeQuestion ask_strategy(const Context& context) {
  if (context.num_processes() <= 1) return std::nullopt;
  std::vector<Choice> choices{
      {"replicate", "nothing (DDP)", ""},
      {"zero1", "optimizer (ZeRO-1)", ""},
      {"zero2", "optimizer, gradients (ZeRO-2)", ""},
      {"fsdp", "all (FSDP2, ZeRO-3)", ""},
  };
  if (context.num_machines() > 1 && context.processes_per_machine() > 1) {
    choices.push_back({"hybrid", "all, within each machine (HSDP)", ""});
  }
  for (auto& choice : choices) {
    choice.consequence = per_process(context, states(context, choice.value, /*mixed=*/false).all);
  }
  choices.push_back({"deepspeed_file", "as a DeepSpeed JSON file says", ""});
  const bool fits = !is_too_much(context, states(context, "replicate", /*mixed=*/false).all);
  return Question{.name = "strategy",
                  .text = "What is split over the processes?",
                  .choices = std::move(choices),
                  .default_value = fits ? "replicate" : "fsdp"};
}

MaybeQuestion ask_deepspeed_config_file(const Context& context) {
  if (context.strategy() != "deepspeed_file") return std::nullopt;
  return Question{.name = "deepspeed_config_file",
                  .text = "Where is the JSON file?",
                  .problem = [](const std::string& answer) -> std::string {
                    std::error_code ignored;
                    if (std::filesystem::is_regular_file(answer, ignored)) return "";
                    return "expected the name of a file that is there";
                  }};
}

MaybeQuestion ask_mixed_precision(const Context& context) {
  if (context.strategy() == "deepspeed_file") return std::nullopt;  // which says it itself
  const auto memory = [&](bool mixed) {
    return per_process(context, states(context, context.strategy(), mixed).all);
  };
  std::vector<Choice> choices{{"no", "float32", memory(false)}};
  const auto& isa = context.here.machine.isa;
  const bool fast = context.on_gpu() || std::any_of(isa.begin(), isa.end(), [](const auto& flag) {
                      return flag.ends_with("_bf16");
                    });
  choices.push_back({"bf16", "bfloat16, float32 in the optimizer",
                     memory(true) + (fast ? "; faster" : "; no faster on this CPU")});
  if (context.on_gpu()) {
    choices.push_back({"fp16", "float16, float32 in the optimizer",
                       memory(true) + "; faster, but the loss must be scaled"});
  }
  return Question{.name = "mixed_precision",
                  .text = "What does the model compute in?",
                  .choices = std::move(choices),
                  .default_value = context.on_gpu() ? "bf16" : "no"};
}

MaybeQuestion ask_offload(const Context& context) {
  if (!context.on_gpu() || !(context.is_fsdp() || context.is_zero())) return std::nullopt;
  const auto bytes = states(context, context.strategy(), context.is_mixed());
  const auto host =
      (bytes.all - bytes.left_by_offload) * static_cast<double>(context.processes_per_machine());
  return yes_no_question(
      "offload",
      context.is_fsdp() ? "Are parameters and the optimizer kept in the host's memory?"
                        : "Is the optimizer kept in the host's memory?",
      amount(context, bytes.all) + " on each GPU",
      fmt::format("{} on each GPU, {} on each host; slower",
                  context.is_fsdp() ? "the units in use" : amount(context, bytes.left_by_offload),
                  amount(context, host)));
}

MaybeQuestion ask_auto_wrap_policy(const Context& context) {
  if (!context.is_fsdp()) return std::nullopt;
  return Question{
      .name = "fsdp_auto_wrap_policy",
      .text = "What is gathered at a time?",
      .choices = {{"TRANSFORMER_BASED_WRAP", "a block of the transformer", "least memory"},
                  {"SIZE_BASED_WRAP", "modules above a size", "for other models"},
                  {"NO_WRAP", "the whole model",
                   amount(context, context.is_mixed() ? 2 : 4) + " more while it computes"}},
      .default_value = "TRANSFORMER_BASED_WRAP"};
}

MaybeQuestion ask_transformer_classes(const Context& context) {
  if (!context.is_fsdp() || context.answer("fsdp_auto_wrap_policy") != "TRANSFORMER_BASED_WRAP") {
    return std::nullopt;
  }
  return Question{.name = "fsdp_transformer_layer_cls_to_wrap",
                  .text =
                      "What is the class of its blocks, such as LlamaDecoderLayer or BertLayer "
                      "(empty: the model knows)?"};
}

MaybeQuestion ask_min_num_params(const Context& context) {
  if (!context.is_fsdp() || context.answer("fsdp_auto_wrap_policy") != "SIZE_BASED_WRAP") {
    return std::nullopt;
  }
  return Question{.name = "fsdp_min_num_params",
                  .text = "From how many parameters on?",
                  .default_value = "100M",
                  .problem = [](const std::string& answer) -> std::string {
                    return count_from(answer) ? "" : "expected a number such as 100M or 1e8";
                  }};
}

MaybeQuestion ask_activation_checkpointing(const Context& context) {
  if (!context.is_fsdp()) return std::nullopt;
  return yes_no_question(
      "fsdp_activation_checkpointing", "Are activations computed again in the backward?",
      "those of every block are kept", "those of one block are kept; a third more computing");
}

MaybeQuestion ask_gradient_accumulation_steps(const Context& context) {
  if (!context.is_zero()) return std::nullopt;
  return number_question("gradient_accumulation_steps", "How many forwards make up one step?", 1, 1,
                         1'000'000);
}

MaybeQuestion ask_gradient_clipping(const Context& context) {
  if (!context.is_zero()) return std::nullopt;
  return Question{.name = "gradient_clipping",
                  .text = "What is the largest norm of the gradients (0: any)?",
                  .default_value = "1.0",
                  .problem = [](const std::string& answer) -> std::string {
                    const auto number = parse_number(answer);
                    const bool good = number && *number >= 0;
                    return good ? "" : "expected a number of 0 or more";
                  }};
}

constexpr std::array kQuestions{ask_device,
                                ask_num_machines,
                                ask_machine_rank,
                                ask_main_process_ip,
                                ask_main_process_port,
                                ask_num_processes,
                                ask_gpu_ids,
                                ask_model,
                                ask_strategy,
                                ask_deepspeed_config_file,
                                ask_mixed_precision,
                                ask_offload,
                                ask_auto_wrap_policy,
                                ask_transformer_classes,
                                ask_min_num_params,
                                ask_activation_checkpointing,
                                ask_gradient_accumulation_steps,
                                ask_gradient_clipping};

std::string distributed_type(const Context& context) {
  if (context.num_processes() <= 1) return "NO";
  if (context.is_fsdp()) return "FSDP";
  if (context.strategy() != "replicate") return "DEEPSPEED";
  return context.on_gpu() ? "MULTI_GPU" : "MULTI_CPU";
}

using Set = std::function<void(const std::string& key, const std::string& value)>;

void set_fsdp(const Context& context, const Set& set) {
  const auto put = [&](const std::string& key, const std::string& value) {
    if (!value.empty()) set("fsdp_config." + key, value);
  };
  put("fsdp_version", "2");
  put("fsdp_reshard_after_forward", "true");
  for (const char* name : {"fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap",
                           "fsdp_activation_checkpointing"}) {
    put(name, context.answer(name));
  }
  if (const auto least = count_from(context.answer("fsdp_min_num_params"))) {
    put("fsdp_min_num_params", fmt::format("{:.0f}", *least));
  }
  put("fsdp_offload_params", context.on_gpu() ? context.answer("offload") : "false");
  put("fsdp_state_dict_type", "SHARDED_STATE_DICT");
  put("fsdp_cpu_ram_efficient_loading", "true");
  if (context.strategy() != "hybrid") return;
  const std::string prefix = "parallelism_config.parallelism_config_";
  set(prefix + "dp_replicate_size", std::to_string(context.num_machines()));
  set(prefix + "dp_shard_size", std::to_string(context.processes_per_machine()));
}

void set_deepspeed(const Context& context, const Set& set) {
  const std::string section = "deepspeed_config.";
  if (context.num_machines() > 1) set(section + "deepspeed_multinode_launcher", "standard");
  set(section + "zero3_init_flag", "false");
  if (!context.is_zero()) {
    set(section + "deepspeed_config_file", context.answer("deepspeed_config_file"));
    return;
  }
  set(section + "zero_stage", context.strategy() == "zero1" ? "1" : "2");
  set(section + "offload_optimizer_device", context.answer("offload") == "true" ? "cpu" : "none");
  set(section + "gradient_accumulation_steps", context.answer("gradient_accumulation_steps"));
  set(section + "gradient_clipping", context.answer("gradient_clipping"));
}

}  // namespace

std::optional<Question> next_question(const Surroundings& here, const Answers& answers) {
  const Context context{here, answers};
  for (const auto& question_if_it_matters : kQuestions) {
    auto question = question_if_it_matters(context);
    if (question && !answers.contains(question->name)) return question;
  }
  return std::nullopt;
}

Settings settings_from_answers(const Surroundings& here, Answers answers) {
  while (const auto question = next_question(here, answers)) {
    answers[question->name] = question->default_value;
  }
  const Context context{here, answers};
  Settings settings;
  const Set set = [&](const std::string& key, const std::string& value) {
    settings.set({.key = key, .value = value, .origin = "tessera config"});
  };
  set("compute_environment", "LOCAL_MACHINE");
  set("distributed_type", distributed_type(context));
  for (const char* name : {"mixed_precision", "num_processes", "num_machines", "machine_rank",
                           "main_process_ip", "main_process_port", "gpu_ids"}) {
    if (!context.answer(name).empty()) set(name, context.answer(name));
  }
  set("use_cpu", context.on_gpu() ? "false" : "true");
  if (context.is_fsdp()) set_fsdp(context, set);
  if (distributed_type(context) == "DEEPSPEED") set_deepspeed(context, set);
  complete(settings);
  return settings;
}

Settings basic_settings(const Machine& machine, const std::string& mixed_precision) {
  const auto gpus = machine.gpus.size();
  Settings settings;
  const Set set = [&](const std::string& key, const std::string& value) {
    settings.set({.key = key, .value = value, .origin = "tessera config default"});
  };
  set("compute_environment", "LOCAL_MACHINE");
  set("distributed_type", gpus > 1 ? "MULTI_GPU" : "NO");
  set("mixed_precision", mixed_precision);
  set("num_processes", std::to_string(std::max<size_t>(1, gpus)));
  set("use_cpu", gpus == 0 ? "true" : "false");
  complete(settings);
  return settings;
}

void complete(Settings& settings) {
  for (const auto& key : keys()) {
    // A precision that is not said is the script's matter, or that of a DeepSpeed file.
    const bool is_left_out = key.default_value.empty() || key.name == "mixed_precision";
    if (!key.section.empty() || is_left_out) continue;
    if (settings.find(key.dotted()) != nullptr) continue;
    if (key.name == "num_processes" && settings.text("distributed_type") != "NO") continue;
    settings.set({.key = key.dotted(),
                  .value = key.name == "num_processes" ? "1" : key.default_value,
                  .origin = "default"});
  }
}

}  // namespace tessera::config::accelerate
