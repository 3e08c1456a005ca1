// tessera merge-adapter: an adapter added into the weights beside which it was trained.
#include "tessera/checkpoint/formats/merge_adapter.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/formats/hf_export.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/formats/stored_adapter.h"
#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/checkpoint/pending_folder.h"
#include "tessera/cli/adapter_run.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/stored_model.h"
#include "tessera/inference/stored_shape.h"
#include "tessera/report/amount_progress.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct MergeAdapterArguments {
  std::string adapter, base;
  fs::path output;
  bool unmerge = false, own_only = false;
};

/// The model that an adapter's settings name: a path from here or from the adapter's folder, or a name
/// on the Hub.
std::string base_of(const fs::path& adapter) {
  const auto config = models::read_peft_config(adapter / checkpoint::kPeftConfig);
  if (config.base.empty()) {
    user_error("{}: base_model_name_or_path: expected a model, got nothing; give one with --base",
               (adapter / checkpoint::kPeftConfig).string());
  }
  const auto beside = adapter / config.base;
  if (!fs::exists(config.base) && fs::exists(beside)) return beside.lexically_normal().string();
  return config.base;
}

int64_t count_merged(const models::AdapterSpec& spec, const models::ModelShape& shape) {
  return std::ssize(models::adapted_modules(spec, shape));
}

/// The weights beside which a run trained: still the same.
std::string base_of(const AdapterRun& run, const std::string& where) {
  const auto& base = run.adapter.base;
  if (base.path.empty())
    user_error("{}: its base was drawn from a seed and is in no folder; give one with --base",
               where);
  checkpoint::check_base_weights(base, where);
  return base.path;
}

/// What is added to the base, one after the other. `source` is the run's, or PEFT's folder.
std::vector<checkpoint::AdapterPart> parts_of(const fs::path& source,
                                              const std::optional<AdapterRun>& run,
                                              const MergeAdapterArguments& arguments,
                                              const models::ModelShape& shape) {
  std::vector<checkpoint::AdapterPart> parts;
  if (run) {
    parts = parts_below(*run, arguments.own_only, shape);
    parts.push_back(own_part(*run));
  } else {
    if (arguments.own_only) refuse_own_only(arguments.adapter);
    const auto peft = std::make_shared<const checkpoint::PeftAdapter>(source, shape);
    checkpoint::refuse_changed_base(*peft);
    parts.push_back({.spec = peft->config().spec, .tensors = {peft, &peft->tensors()}});
  }
  for (auto& part : parts) part.subtracts = part.subtracts != arguments.unmerge;
  return parts;
}

void run_merge_adapter(const MergeAdapterArguments& arguments) {
  checkpoint::refuse_existing(arguments.output);  // before a long look at the weights
  const auto source = fs::path(model_folder(arguments.adapter, /*weights=*/true));
  std::optional<AdapterRun> run;
  if (!checkpoint::is_peft(source)) run.emplace(open_adapter_run(source, /*step=*/-1));
  const auto named = !arguments.base.empty() ? arguments.base
                     : run                   ? base_of(*run, arguments.adapter)
                                             : base_of(source);
  const auto base = checkpoint::open_training(
      {.source = chosen_checkpoint(model_folder(named, /*weights=*/true), -1),
       .with_optimizer = false});
  const auto shape = inference::stored_shape(base, 1);
  const auto parts = parts_of(source, run, arguments, shape);
  const auto sum = checkpoint::with_parts({std::shared_ptr<void>(), &base.tensors}, parts, shape);
  checkpoint::SourceView merged(base.tensors.path());
  for (const auto& [name, info] : base.tensors.tensors()) merged.add(name, *sum, name, info.dtype);
  auto stored = checkpoint::as_stored(
      merged, checkpoint::FamilyNames(base.about.model, base.tensors.path().string()));
  report::AmountProgress line("merge-adapter");
  stored.report_reads([&](int64_t done, int64_t total) { line.show(done, total); });
  const bool brings_tokenizer =
      fs::exists(source / "tokenizer.json") || fs::exists(source / "tokenizer.model");
  checkpoint::export_hf(
      stored, arguments.output,
      {.config = base.about.model, .carry_from = brings_tokenizer ? source : base.assets_folder});
  fmt::print("wrote {}: {} {} {} matrices of {}, in float32, stored as they were\n",
             printable(arguments.output.string()), printable(arguments.adapter),
             arguments.unmerge ? "subtracted from" : "added to",
             count_merged(parts.back().spec, shape), printable(named));
}

}  // namespace

void add_merge_adapter(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<MergeAdapterArguments>();
  auto* command = app.add_subcommand("merge-adapter",
                                     "Add an adapter into the weights beside which it was trained");
  command->footer(
      "Examples:\n  tessera merge-adapter runs/lora -o merged\n  tessera merge-adapter org/adapter "
      "-o model_with_adapter");
  command
      ->add_option("ADAPTER", arguments->adapter,
                   "Run that trained an adapter, PEFT's folder of one, or its name on the Hub")
      ->required();
  command->add_option("--base", arguments->base,
                      "Model to add it to; unless given, the one that its settings name");
  command
      ->add_option("-o,--output", arguments->output, "Hugging Face folder to write; must not exist")
      ->required();
  command->add_flag("--unmerge", arguments->unmerge,
                    "Subtract it from a model that has it (LoRA alone), up to rounding");
  command->add_flag("--own-only", arguments->own_only,
                    "Of a run with adapter.base: leave those adapters out");
  command->callback([arguments, &exit_code] {
    run_merge_adapter(*arguments);
    exit_code = 0;
  });
}

}  // namespace tessera::cli
