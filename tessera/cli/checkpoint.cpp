// tessera checkpoint: looks at stored models and rewrites them, without the code of any model.
#include "tessera/checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/formats/convert.h"
#include "tessera/checkpoint/formats/diff.h"
#include "tessera/checkpoint/formats/inspect.h"
#include "tessera/checkpoint/formats/open_source.h"
#include "tessera/checkpoint/formats/reshard.h"
#include "tessera/cli/checkpoint_text.h"
#include "tessera/cli/choices.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/ranges.h"
#include "tessera/report/amount_progress.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

constexpr const char* kCheckpointFooter =
    "Exit code: 0 all is well (diff: equal), 1 a failure (diff: different), 2 damage found or a "
    "mistake in the command.\n"
    "Example:\n  tessera checkpoint verify run/checkpoints";

CLI::App* add_command(CLI::App& app, const char* name, const char* what, const char* examples) {
  auto* command = app.add_subcommand(name, what);
  command->footer(std::string("Example:\n") + examples);
  return command;
}

/// The value of an option that is one of several words.
template <typename Value>
Value one_of(const char* option, const std::string& word,
             const std::vector<std::pair<std::string, Value>>& known) {
  std::vector<std::string> words;
  for (const auto& [name, value] : known) {
    if (name == word) return value;
    words.push_back(name);
  }
  user_error("checkpoint: {}: expected {}, got '{}'{}", option, fmt::join(words, ", "), word,
             did_you_mean(word, words));
}

/// Calls action(progress); what that is told stands on the terminal as `what` meanwhile.
template <typename Action>
auto with_progress(const std::string& what, const Action& action) {
  report::AmountProgress line(what);
  return action(SourceView::Progress([&](int64_t done, int64_t total) { line.show(done, total); }));
}

/// Reads all of a checkpoint and returns what is to be said of it.
std::string verified(const fs::path& path) {
  const auto opened = open_with_format(path);
  const auto& source = *opened.tensors;
  const auto* stored = dynamic_cast<const Checkpoint*>(&source);
  if (stored == nullptr) {
    return fmt::format("well-formed {}: {} tensors, {}; it keeps no checksums of their values",
                       format_name(opened.format), source.tensors().size(),
                       format_bytes(total_bytes(source)));
  }
  with_progress(path.string(), [&](const auto& progress) {
    int64_t done = 0;
    stored->verify([&](int64_t bytes) { progress(done += bytes, stored->num_bytes()); });
  });
  return fmt::format("ok: step {}, {} tensors, {} in {} files", stored->index().step,
                     source.tensors().size(), format_bytes(stored->num_bytes()),
                     stored->index().files.size());
}

int verify(const fs::path& path) {
  std::vector<fs::path> paths;
  const auto steps = checkpoints_in(path);
  for (const auto& step : steps) paths.push_back(step.path);
  if (paths.empty()) paths.push_back(path);
  int exit_code = 0;
  for (const auto& each : paths) {
    try {
      fmt::print("{}: {}\n", printable(each.string()), verified(each));
    } catch (const UserError& error) {
      if (steps.empty()) throw;
      fmt::print("{}\n", printable(error.what()));
      exit_code = kUserErrorExit;
    }
    std::fflush(stdout);
  }
  if (steps.empty()) return exit_code;
  for (const auto& each : unfinished(steps.front().path.parent_path())) {
    fmt::print("{}: unfinished: of a save that is under way or was interrupted\n",
               printable(each.string()));
  }
  return exit_code;
}

void add_verify(CLI::App& app, int& exit_code) {
  auto path = std::make_shared<std::string>();
  auto* command = add_command(
      app, "verify", "Read a checkpoint, or each of a run, and compare it with its checksums",
      "  tessera checkpoint verify run/checkpoints");
  command
      ->add_option("PATH", *path, "Checkpoint, folder of a run or of its checkpoints, or a model")
      ->required();
  command->callback([path, &exit_code] { exit_code = verify(*path); });
}

void add_inspect(CLI::App& app, int& exit_code) {
  struct CheckpointArguments {
    std::string path;
    bool tensors = false, json = false;
  };
  auto arguments = std::make_shared<CheckpointArguments>();
  auto* command =
      add_command(app, "inspect", "Show what a checkpoint or a stored model holds",
                  "  tessera checkpoint inspect run/checkpoints/step_00000100 --tensors");
  command->add_option("PATH", arguments->path, "Checkpoint or stored model; of a run, the last")
      ->required();
  command->add_flag("--tensors", arguments->tensors, "Each tensor: dtype, shape, where it lies");
  command->add_flag("--json", arguments->json, "As JSON");
  command->callback([arguments, &exit_code] {
    const auto steps = checkpoints_in(arguments->path);
    const auto path = steps.empty() ? fs::path(arguments->path) : steps.back().path;
    const auto about = inspect(open_with_format(path), arguments->tensors);
    fmt::print("{}", arguments->json ? about.dump(2) + "\n" : inspection_text(about));
    exit_code = 0;
  });
}

struct DiffArguments {
  std::string a, b;
  double tolerance = 0;
  bool parameters_only = false;
};

int run_diff(const DiffArguments& arguments) {
  if (!(arguments.tolerance >= 0)) {
    user_error("checkpoint: --tolerance: expected a number of 0 or more, got {}",
               arguments.tolerance);
  }
  const auto open = [&](const std::string& path) {
    return open_training({.source = path, .with_optimizer = !arguments.parameters_only});
  };
  auto a = open(arguments.a);
  const auto b = open(arguments.b);
  const auto differences = with_progress("diff", [&](const auto& progress) {
    a.tensors.report_reads(progress);
    return diff(a.tensors, b.tensors, arguments.tolerance);
  });
  fmt::print("{}", differences_text(differences, arguments.a, arguments.b));
  return differences.any() ? kFailureExit : 0;
}

void add_diff(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<DiffArguments>();
  auto* command = add_command(
      app, "diff", "Compare two checkpoints or stored models",
      "  tessera checkpoint diff run/checkpoints/step_00000100 exported --parameters-only");
  command->add_option("A", arguments->a, "Checkpoint or stored model")->required();
  command->add_option("B", arguments->b, "The other one, of any format")->required();
  command->add_option("--tolerance", arguments->tolerance,
                      "Elements this far apart are still equal; 0 unless given");
  command->add_flag("--parameters-only", arguments->parameters_only, "Leave out the optimizer");
  command->callback([arguments, &exit_code] { exit_code = run_diff(*arguments); });
}

void run_reshard(const char* what, ReshardOptions& options) {
  with_progress(what, [&](const auto& progress) {
    options.progress = progress;
    reshard(options);
  });
  fmt::print("wrote {}\n", printable(options.destination.string()));
}

void add_reshard(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ReshardOptions>();
  auto* command = add_command(app, "reshard", "Write a checkpoint again, in N files of even size",
                              "  tessera checkpoint reshard run/checkpoints/step_00000100 -o "
                              "eight/step_00000100 --shards 8");
  command->add_option("CHECKPOINT", options->source, "Checkpoint to read")->required();
  command->add_option("-o,--out", options->destination, "Checkpoint to write")->required();
  command->add_option("--shards", options->num_files, "Files")->required();
  command->callback([options, &exit_code] {
    run_reshard("reshard", *options);
    exit_code = 0;
  });
}

void add_merge(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ReshardOptions>();
  auto* command = add_command(
      app, "merge", "Write a checkpoint again, in one file that any reader of safetensors reads",
      "  tessera checkpoint merge run/checkpoints/step_00000100 -o model.safetensors "
      "--parameters-only");
  command->add_option("CHECKPOINT", options->source, "Checkpoint to read")->required();
  command
      ->add_option("-o,--out", options->destination,
                   "Checkpoint to write or, with a name that ends in .safetensors, that file alone")
      ->required();
  command->add_flag("--parameters-only", options->parameters_only, "Leave out the optimizer");
  command->callback([options, &exit_code] {
    run_reshard("merge", *options);
    exit_code = 0;
  });
}

struct ConvertArguments {
  ConvertOptions options;
  std::string to, dtype;
  CLI::Option *step = nullptr, *upcycle = nullptr, *top_k = nullptr;
  int64_t step_value = 0;
  UpcycleOptions mixture;
};

void run_convert(ConvertArguments& arguments) {
  auto& options = arguments.options;
  options.to = one_of<Target>(
      "--to", arguments.to,
      {{"huggingface", Target::huggingface}, {"tessera", Target::tessera}, {"llmc", Target::llmc}});
  if (!arguments.dtype.empty()) {
    options.from.dtype =
        one_of<DType>("--dtype", arguments.dtype,
                      {{"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp32", DType::f32}});
  }
  if (arguments.step->count() > 0) options.from.step = arguments.step_value;
  if (options.to != Target::tessera && (options.from.step || !options.from.optimizer.empty())) {
    user_error("checkpoint: --{} takes effect with --to tessera alone",
               options.from.step ? "step" : "optimizer");
  }
  if (arguments.upcycle->count() > 0) options.upcycle = arguments.mixture;
  if (options.to == Target::llmc && options.upcycle) {
    user_error("checkpoint: --upcycle takes effect with --to huggingface or tessera alone");
  }
  if (!options.upcycle && arguments.top_k->count() > 0) {
    user_error("checkpoint: --experts-per-token takes effect with --upcycle alone");
  }
  with_progress("convert", [&](const auto& progress) {
    options.progress = progress;
    convert(options);
  });
  fmt::print("wrote {}\n", printable(options.destination.string()));
}

void add_convert(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ConvertArguments>();
  auto& options = arguments->options;
  auto* command =
      add_command(app, "convert", "Write a stored model in another format",
                  "  tessera checkpoint convert run/checkpoints/step_00000100 -o "
                  "converted --to huggingface --dtype bf16\n"
                  "  tessera checkpoint convert fsdp_checkpoint -o "
                  "run/checkpoints/step_00000005 --to tessera --config model_folder\n"
                  "  tessera checkpoint convert model_folder -o mixture --to huggingface "
                  "--upcycle 8");
  command
      ->add_option("SOURCE", options.from.source,
                   "Checkpoint of Tessera, folder of Hugging Face, torch.distributed.checkpoint "
                   "or DeepSpeed (universal), .safetensors, llm.c's .bin")
      ->required();
  command->add_option("-o,--out", options.destination, "What to write; must not exist")->required();
  takes(command->add_option("--to", arguments->to), {"huggingface", "tessera", "llmc"})->required();
  takes(command->add_option("--dtype", arguments->dtype,
                            "Of the parameters; as they are unless given"),
        {"bf16", "fp16", "fp32"});
  command->add_option("--max-shard-size", options.max_file_bytes, "Of one file; 5GB unless given")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(whole_number(1, "at least 1"));
  command->add_option("--config", options.from.config,
                      "config.json of the model, or its folder; unless it lies in SOURCE");
  command->add_option("--optimizer", options.from.optimizer,
                      "The optimizer's folder, where SOURCE (torch.distributed.checkpoint) is the "
                      "model's alone");
  arguments->step =
      command->add_option("--step", arguments->step_value,
                          "Optimizer steps taken; what the optimizer's state says unless given");
  arguments->step->check(whole_number(0, "0 or more"));
  arguments->upcycle =
      command->add_option("--upcycle", arguments->mixture.num_experts,
                          "Write a dense model as a mixture of so many experts, each a copy of its "
                          "feed-forward");
  arguments->top_k = command->add_option("--experts-per-token", arguments->mixture.top_k,
                                         "Of --upcycle; 2 unless given");
  command->callback([arguments, &exit_code] {
    run_convert(*arguments);
    exit_code = 0;
  });
}

}  // namespace

void add_checkpoint(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("checkpoint", "Look at checkpoints and stored models, and rewrite them")
          ->require_subcommand(1);
  command->footer(kCheckpointFooter);
  add_verify(*command, exit_code);
  add_inspect(*command, exit_code);
  add_diff(*command, exit_code);
  add_reshard(*command, exit_code);
  add_merge(*command, exit_code);
  add_convert(*command, exit_code);
}

}  // namespace tessera::cli
