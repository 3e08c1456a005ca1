// tessera export: a trained model as other programs load it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/machine.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/formats/convert.h"
#include "tessera/checkpoint/formats/gguf/modelfile.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/pending_folder.h"
#include "tessera/cli/adapter_run.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/model_card.h"
#include "tessera/cli/ranges.h"
#include "tessera/cli/stored_model.h"
#include "tessera/cli/worker_program.h"
#include "tessera/config/precision.h"
#include "tessera/config/stored_job.h"
#include "tessera/inference/request.h"
#include "tessera/inference/stored_shape.h"
#include "tessera/launch/launch.h"
#include "tessera/models/mixture_spec.h"
#include "tessera/text/tokenizer.h"

namespace tessera::cli {
namespace {

using checkpoint::GgufFileType;

/// By name, in the order in which they are listed.
const std::vector<std::pair<std::string, GgufFileType>>& gguf_types() {
  static const std::vector<std::pair<std::string, GgufFileType>> types = {
      {"f32", GgufFileType::f32},   {"f16", GgufFileType::f16},   {"bf16", GgufFileType::bf16},
      {"q8_0", GgufFileType::q8_0}, {"q4_0", GgufFileType::q4_0}, {"q4_k_m", GgufFileType::q4_k_m}};
  return types;
}

struct ExportArguments {
  checkpoint::ConvertOptions options;
  std::string to, type = "f16", weights = "as_stored", expert_format;
  std::filesystem::path chat_template;  ///< the file that options.chat_template is read from
  int64_t step = -1;                    // not given
  bool no_compare = false, own_only = false;
};

/// float32 where the model fits so, else bfloat16; none: neither fits.
std::optional<FloatType> comparing_dtype(int64_t num_parameters) {
  constexpr double kRoom = 1.2;  // beside weights
  const auto available = static_cast<double>(this_machine().available_bytes);
  const double numbers = kRoom * static_cast<double>(num_parameters);
  if (4 * numbers < available) return FloatType::fp32;
  if (2 * numbers < available) return FloatType::bf16;
  return std::nullopt;
}

/// Asks tessera-worker. What was written stays, whatever comes of it. Returns the exit code.
int ask_worker(const inference::Request& request) {
  launch::LaunchOptions start{.output = launch::OutputMode::plain, .pass_listen_socket = true};
  start.command = {worker_path(), kAnswer, file_for_ranks(inference::to_bytes(request))};
  start.num_processes = 1;
  std::fflush(stdout);
  return launch::launch(start);
}

/// What asks tessera-worker to compute prompts with the source and with what was written. UserError: why
/// it cannot.
inference::Request comparing_request(const checkpoint::ConvertOptions& options,
                                     const checkpoint::TrainingSource& source) {
  const int64_t parameters = models::num_parameters(inference::stored_shape(source, 1));
  const auto dtype = comparing_dtype(parameters);
  if (!dtype) {
    user_error("{} of memory are free, and its {} parameters take more",
               format_bytes(this_machine().available_bytes), parameters);
  }
  return {.task = inference::Task::compare,
          .model = options.from.source.string(),
          .other = options.destination.string(),
          .tokenizer = options.assets.string(),
          .dtype = dtype,
          .backend = comm::BackendChoice::gloo};
}

int compare(const checkpoint::ConvertOptions& options, const checkpoint::TrainingSource& source) {
  inference::Request request;
  try {
    request = comparing_request(options, source);
  } catch (const UserError& error) {
    fmt::print("not compared with the source: {}\n", printable(error.what()));
    return 0;
  }
  return ask_worker(request);
}

/// Tokenizer and template of the job, where the model has none of its own: a model that was trained from
/// scratch, or on another template.
void take_from_job(const checkpoint::TrainingSource& source, ExportArguments& arguments) {
  namespace fs = std::filesystem;
  auto& options = arguments.options;
  const auto job = config::read_stored_job(source.about.config);
  if (fs::is_regular_file(job.chat_template)) {
    arguments.chat_template = job.chat_template;
    options.chat_template = read_file(job.chat_template);
  }
  options.assets = source.assets_folder;
  const bool has_own = !source.assets_folder.empty() && text::has_tokenizer(source.assets_folder);
  if (has_own || job.tokenizer.empty()) return;
  if (!fs::exists(job.tokenizer)) {
    fmt::print(stderr, "its job names the tokenizer {}, which is not there: the export has none\n",
               printable(job.tokenizer));
    return;
  }
  const fs::path path(job.tokenizer);
  options.assets = fs::is_directory(path) ? path : path.parent_path();
}

inference::Request quantising_request(const ExportArguments& arguments, WeightFormat weights) {
  const auto& options = arguments.options;
  return {.task = inference::Task::quantise,
          .model = options.from.source.string(),
          .other = options.destination.string(),
          .tokenizer = options.assets.string(),
          .chat_template = arguments.chat_template.string(),
          .weights = weights,
          .backend = comm::BackendChoice::gloo,
          .model_card = options.model_card};
}

/// Beside the GGUF file; one that is there is left alone.
void write_modelfile(const std::filesystem::path& gguf, const std::filesystem::path& assets) {
  auto path = gguf;
  path.replace_extension(".Modelfile");
  if (std::filesystem::exists(path)) {
    fmt::print("left {} as it is\n", printable(path.string()));
    return;
  }
  write_file(path, checkpoint::modelfile(gguf, assets));
  fmt::print("wrote {}\n", printable(path.string()));
}

/// The format asked for, or else that of the run's job.
models::ExpertFormat expert_format_of(const ExportArguments& arguments, const AdapterRun& run,
                                      const models::ModelShape& shape) {
  auto text = arguments.expert_format;
  if (text.empty()) text = config::read_stored_job(run.training.about.config).expert_format;
  const auto format = value_named<models::ExpertFormat>(text).value_or(models::ExpertFormat::fused);
  checkpoint::check_expert_format(format, shape);
  if (!arguments.expert_format.empty() && shape.experts.num == 0)
    user_error("export: --expert-format takes effect on mixtures alone");
  return format;
}

/// The adapter of a run, as PEFT keeps one: with those of adapter.base, and less what PiSSA began with, so that it belongs to the
/// model as it is stored.
int export_peft(const ExportArguments& arguments) {
  const auto& [from, destination] =
      std::tie(arguments.options.from.source, arguments.options.destination);
  const auto run = open_adapter_run(from, arguments.step);
  const auto shape = inference::stored_shape(run.training, 1);
  const auto format = expert_format_of(arguments, run, shape);
  const auto below = parts_below(run, arguments.own_only, shape);
  auto part = own_part(run);
  if (!below.empty()) part = checkpoint::sum_of_adapters(below, part, shape);
  const auto& base = run.adapter.base;
  checkpoint::write_peft(
      *part.tensors, shape, destination,
      {.config = {.spec = part.spec, .base = base.path}, .dtype = {}, .experts = format});
  fmt::print("wrote {}: the adapter alone{}, to be used beside {}{}\n",
             printable(destination.string()),
             below.empty() ? "" : fmt::format(", of rank {}", part.spec.rank),
             base.path.empty() ? "its base" : printable(base.path),
             arguments.own_only ? " with the adapters of adapter.base" : "");
  const bool balanced = std::ranges::any_of(run.training.tensors.tensors(), [](const auto& tensor) {
    return tensor.first.ends_with(models::kSelectionBias);
  });
  if (balanced) {
    fmt::print(
        "left out: the selection biases of its routers, for which PEFT's files have no "
        "place; tessera merge-adapter writes them\n");
  }
  return 0;
}

int run_export(ExportArguments& arguments, bool has_type) {
  auto& options = arguments.options;
  if (has_type && arguments.to != "gguf")
    user_error("export: --type takes effect with --to gguf alone");
  if (arguments.weights != "as_stored" && arguments.to != "huggingface")
    user_error("export: --weights takes effect with --to huggingface alone");
  if (arguments.own_only && arguments.to != "peft")
    user_error("export: --own-only takes effect with --to peft alone");
  if (!arguments.expert_format.empty() && arguments.to != "peft")
    user_error("export: --expert-format takes effect with --to peft alone");
  checkpoint::refuse_existing(options.destination);  // before a long look at the source
  if (arguments.to == "peft") return export_peft(arguments);
  options.from.source = chosen_checkpoint(options.from.source, arguments.step);
  options.to = arguments.to == "gguf" ? checkpoint::Target::gguf : checkpoint::Target::huggingface;
  options.type =
      std::ranges::find(gguf_types(), arguments.type, &std::pair<std::string, GgufFileType>::first)
          ->second;
  options.on_gguf = [](const checkpoint::GgufExported& done) {
    fmt::print("read back: {} tensors, largest relative error {:.2g}{}\n", done.num_tensors,
               done.error, done.worst.empty() ? "" : " of " + done.worst);
    if (done.num_fallbacks != 0) {
      fmt::print("{} matrices have rows that are no multiple of 256: they are Q5_0, Q8_0 or F16\n",
                 done.num_fallbacks);
    }
  };
  const auto source =
      checkpoint::open_training({.source = options.from.source, .with_optimizer = false});
  if (checkpoint::base_weights_of(source.about.state)) {
    user_error("{}: an adapter alone; export it --to peft, or tessera merge-adapter it first",
               options.from.source.string());
  }
  const bool gguf = options.to == checkpoint::Target::gguf;
  const auto name = std::filesystem::path(options.destination).filename().string();
  if (!gguf && source.about.model.is_object()) options.model_card = model_card(source, name);
  take_from_job(source, arguments);
  const auto weights = value_named<WeightFormat>(arguments.weights).value();
  if (weights == WeightFormat::as_stored) {
    convert(options);
  } else if (const int code = ask_worker(quantising_request(arguments, weights)); code != 0) {
    return code;
  }
  fmt::print("wrote {}\n", printable(options.destination.string()));
  if (const auto row = config::stored_precision(source.about.state)) {
    const auto note = config::weights_note(*row);
    if (!note.empty()) fmt::print("of the run: {}\n", note);
  }
  if (gguf) write_modelfile(options.destination, options.assets);
  return arguments.no_compare ? 0 : compare(options, source);
}

}  // namespace

void add_export(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ExportArguments>();
  auto* command = app.add_subcommand("export", "Write a trained model for other programs");
  command->add_option("SOURCE", arguments->options.from.source, "Run, checkpoint or stored model")
      ->required();
  command
      ->add_option("DESTINATION", arguments->options.destination, "What to write; must not exist")
      ->required();
  command
      ->add_option("--to", arguments->to,
                   "huggingface (a folder), gguf (a file), or peft (a run's adapter alone)")
      ->required()
      ->check(CLI::IsMember({"huggingface", "gguf", "peft"}));
  auto* type =
      command->add_option("--type", arguments->type, "Of a GGUF's matrices; f16 unless given")
          ->check(CLI::IsMember(gguf_types()));
  command
      ->add_option(
          "--weights", arguments->weights,
          "Linear layers of blocks in 4 or 8 bits, as transformers with bitsandbytes loads "
          "them (--to huggingface)")
      ->check(CLI::IsMember(texts_of<WeightFormat>()));
  command->add_option("--step", arguments->step, "Checkpoint of a run; the last unless given")
      ->check(whole_number(0, "0 or more"));
  command->add_flag("--no-compare", arguments->no_compare,
                    "Do not compute prompts with the source and with what was written");
  command->add_flag("--own-only", arguments->own_only,
                    "Of a run with adapter.base, --to peft: leave those adapters out");
  command
      ->add_option("--expert-format", arguments->expert_format,
                   "Of a mixture's experts, --to peft: fused (transformers 5) or per_expert; the "
                   "job's adapter.expert_format unless given")
      ->check(CLI::IsMember(texts_of<models::ExpertFormat>()));
  command->footer("Example:\n  tessera export runs/x x.gguf --to gguf --type q4_k_m");
  command->callback(
      [arguments, type, &exit_code] { exit_code = run_export(*arguments, type->count() > 0); });
}

}  // namespace tessera::cli
