// tessera finetune: from a model and a file of conversations to a run, with settings that fit the machine.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/machine.h"
#include "tessera/base/units.h"
#include "tessera/cli/bytes_option.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/finetune_job.h"
#include "tessera/cli/output_file.h"
#include "tessera/cli/ranges.h"
#include "tessera/cli/stored_model.h"
#include "tessera/cli/train.h"
#include "tessera/cli/worker_program.h"
#include "tessera/documents/documents.h"
#include "tessera/inference/stored_shape.h"
#include "tessera/records/reader.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExamples =
    "Examples:\n"
    "  tessera finetune org/model chats.jsonl               LoRA, if that fits; else QLoRA\n"
    "  tessera finetune org/model chats.jsonl --qlora -n 2 --run-dir runs/two   4-bit base, over "
    "two ranks\n"
    "  tessera finetune org/model pairs.jsonl --dry-run     the job, and why it is so\n\n"
    "Any key of a job file can be set as --section.key=value (docs/config.md).\n";

struct FinetuneArguments {
  std::string model, run_dir, memory;
  std::vector<std::string> data, validation;
  bool lora = false, qlora = false, full = false, dpo = false, dry_run = false;
  int64_t num_ranks = 1, seq_len = 0;
  double epochs = 0;
};

/// The first rows are enough to choose by: a data set may be large.
constexpr int64_t kRowsRead = 2000;

DataFacts facts_of(const FinetuneArguments& arguments, const std::string& model,
                   const config::DataSection& keys) {
  documents::DocumentsOptions options{.skip_bad_lines = keys.skip_bad_lines,
                                      .max_documents = kRowsRead + 1,
                                      .num_threads = static_cast<int>(this_machine().num_cores)};
  for (const auto& entry : arguments.data) {
    for (auto& file : data_files(entry).paths) options.paths.push_back(std::move(file));
  }
  records::RecordReader reader({.paths = options.paths, .skip_bad_lines = keys.skip_bad_lines});
  const auto first = reader.next();
  if (!first) user_error("{}: no rows", arguments.data.front());
  options.shape =
      keys.shape == data::RowShape::automatic ? documents::shape_of(first->value) : keys.shape;
  if (arguments.dpo && options.shape != data::RowShape::preference) {
    user_error("{}: --dpo needs rows with chosen and rejected answers; these have none",
               arguments.data.front());
  }
  const documents::DocumentEncoder encoder(
      {.tokenizer = keys.tokenizer.empty() ? model : model_folder(keys.tokenizer, false),
       .chat_template = keys.chat_template,
       .learn = keys.learn});
  const auto documents = documents::load_documents(encoder, options);
  DataFacts facts{.shape = options.shape,
                  .all_rows = static_cast<int64_t>(documents.num_rows()) <= kRowsRead};
  for (size_t row = 0; row < documents.num_rows(); ++row) {
    int64_t tokens = 0;
    for (const auto document : documents.of_row(row)) tokens += std::ssize(document);
    facts.lengths.push_back(tokens);
  }
  fmt::print("{}: {}\n", arguments.data.front(), documents::summary(documents.counts()));
  return facts;
}

std::vector<Method> methods_of(const FinetuneArguments& arguments) {
  if (arguments.lora + arguments.qlora + arguments.full > 1)
    user_error("finetune: --lora, --qlora and --full exclude one another; give one");
  if (arguments.full) return {Method::full};
  if (arguments.qlora) return {Method::qlora};
  if (arguments.lora) return {Method::lora};
  return {Method::lora, Method::qlora};
}

/// runs/MODEL-DATA, where the user says nothing.
std::string run_dir_of(const FinetuneArguments& arguments) {
  if (!arguments.run_dir.empty()) return arguments.run_dir;
  const auto stem = [](const std::string& path) {
    auto name = fs::path(path).lexically_normal();
    if (!name.has_filename()) name = name.parent_path();
    return name.filename().replace_extension().string();
  };
  return fmt::format("runs/{}-{}", stem(arguments.model), stem(arguments.data.front()));
}

void print_memory(const FinetuneJob& job, const FinetuneRequest& request) {
  fmt::print("a rank may take {}:\n", format_bytes(static_cast<int64_t>(request.memory_bytes)));
  for (const auto& [method, bytes, longest] : job.memory) {
    fmt::print("  {:<6} {:>10} at the least for rows of {} tokens; {}{}\n", name_of(method),
               format_bytes(static_cast<int64_t>(bytes)), job.config.data.seq_len,
               longest == 0 ? "does not fit" : fmt::format("rows of {} fit", longest),
               method == job.method ? "   <- taken" : "");
  }
}

void print_next(const FinetuneJob& job, const std::string& run_dir) {
  fmt::print("\nNow try:\n  tessera chat {}\n", run_dir);
  auto whole = run_dir;
  if (job.method != Method::full) {
    fmt::print("  tessera export {0} {0}-peft --to peft\n", run_dir);
    whole += "-merged";
    fmt::print("  tessera merge-adapter {} -o {}\n", run_dir, whole);
  }
  fmt::print("  tessera export {} {}.gguf --to gguf\n", whole, run_dir);
}

void refuse_run(const fs::path& run_dir, const fs::path& file) {
  for (const auto* left : {"finetune.yaml", "config.yaml", "checkpoints"}) {
    if (!fs::exists(run_dir / left)) continue;
    user_error(
        "finetune: {} has a run already; give another --run-dir, or go on with it: tessera train "
        "{} --resume auto",
        run_dir.string(), file.string());
  }
}

/// The job's file in the run's folder. Where nothing has joined it, as training was refused, it goes
/// again, and so do the folders that were made for it.
class JobFile {
 public:
  JobFile(fs::path file, const std::string& yaml) : file_(std::move(file)) {
    check_output(file_, "set --run-dir");
    for (auto folder = file_.parent_path(); !folder.empty() && !fs::exists(folder);
         folder = folder.parent_path()) {
      made_.push_back(folder);
    }
    write_output(file_, yaml);
  }
  ~JobFile() {
    std::error_code ignored;
    const fs::directory_iterator beside(file_.parent_path(), ignored);
    if (std::distance(begin(beside), end(beside)) > 1) return;
    fs::remove(file_, ignored);
    for (const auto& folder : made_) fs::remove(folder, ignored);
  }
  JobFile(const JobFile&) = delete;
  JobFile& operator=(const JobFile&) = delete;

 private:
  fs::path file_;
  std::vector<fs::path> made_;  // the lowest first
};

int finetune(const FinetuneArguments& arguments, std::vector<config::Override> overrides) {
  // What of the user's own keys the choices depend on.
  const auto keys = config::load_run_config("", overrides).config;
  const auto model = model_folder(arguments.model, /*weights=*/!arguments.dry_run);
  const auto shape = inference::stored_shape(
      checkpoint::open_training({.source = model, .with_optimizer = false}), 1);
  FinetuneRequest request{.model = arguments.model,
                          .data = arguments.data,
                          .validation = arguments.validation,
                          .methods = methods_of(arguments),
                          .num_ranks = num_ranks(arguments.num_ranks),
                          .device = predict::this_cpu(),
                          .seq_len = arguments.seq_len,
                          .epochs = arguments.epochs,
                          .run_dir = run_dir_of(arguments),
                          .overrides = std::move(overrides)};
  // What else runs, and what an estimate leaves out, needs a part.
  constexpr double kShare = 0.85;
  request.memory_bytes = arguments.memory.empty()
                             ? kShare * static_cast<double>(this_machine().memory_bytes) /
                                   static_cast<double>(request.num_ranks)
                             : bytes_of(arguments.memory, "finetune: --memory");
  const auto facts = facts_of(arguments, model, keys.data);
  const auto job = make_finetune_job(request, shape, facts);
  print_memory(job, request);
  const auto yaml = job_yaml(job);
  const auto& run_dir = job.config.train.run_dir;
  const auto file = fs::path(run_dir) / "finetune.yaml";
  fmt::print("\n# {}\n{}\n", file.string(), yaml);
  if (arguments.dry_run) return 0;
  refuse_run(run_dir, file);
  const JobFile written(file, yaml);
  std::fflush(stdout);  // before what the ranks print
  const int exit_code = train_job(file.string(), {});
  if (exit_code == 0) print_next(job, run_dir);
  return exit_code;
}

}  // namespace

void add_finetune(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<FinetuneArguments>();
  auto& given = *arguments;
  auto* command = app.add_subcommand(
      "finetune", "Fine-tune a published model on data, with settings that fit the machine");
  command
      ->add_option("MODEL", given.model, "Folder of a model, or its name on the Hugging Face Hub")
      ->required();
  command->add_option("DATA", given.data, "Conversations, prompts, texts or pairs: files or names")
      ->required();
  command->add_option("--validation", given.validation,
                      "Files to validate with; a twentieth of DATA unless given");
  command->add_flag("--lora", given.lora,
                    "Adapters beside the model in 16 bits, whatever else fits");
  command->add_flag("--qlora", given.qlora, "Adapters beside the model in 4 bits");
  command->add_flag("--full", given.full, "All weights");
  command->add_flag("--dpo", given.dpo, "Rows are pairs of answers (also found by their keys)");
  command->add_option("-n,--num-ranks", given.num_ranks, "Processes; -1: one per two cores")
      ->capture_default_str()
      ->check(rank_count());
  command
      ->add_option("--seq-len", given.seq_len, "Tokens of a row; chosen by the data unless given")
      ->check(whole_number(1, "1 or more"));
  command
      ->add_option("--epochs", given.epochs, "Passes over the data; 3, or 1 of much, unless given")
      ->check(number(1e-6, 1e6, "more than 0, at most 1000000"));
  command->add_option("--memory", given.memory,
                      "What a rank may take, such as 20GB; this machine's share unless given");
  command->add_option("--run-dir", given.run_dir,
                      "Where the run is kept; runs/MODEL-DATA unless given");
  command->add_flag("--dry-run", given.dry_run, "Show the job, and do nothing");
  command->allow_extras();
  command->footer(kExamples);
  command->callback([command, arguments, &exit_code] {
    exit_code = finetune(*arguments, parse_overrides(command->remaining(), "finetune"));
  });
}

}  // namespace tessera::cli
