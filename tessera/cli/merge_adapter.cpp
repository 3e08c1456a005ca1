// tessera merge-adapter: an adapter added into the weights beside which it was trained.
#include "tessera/checkpoint/formats/merge_adapter.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/formats/hf_export.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/checkpoint/pending_folder.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/stored_model.h"
#include "tessera/inference/stored_shape.h"
#include "tessera/report/byte_progress.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct MergeAdapterArguments {
  std::string adapter, base;
  fs::path output;
  bool unmerge = false;
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

void run_merge_adapter(const MergeAdapterArguments& arguments) {
  checkpoint::refuse_existing(arguments.output);  // before a long look at the weights
  const auto adapter_folder = fs::path(model_folder(arguments.adapter, /*weights=*/true));
  if (!checkpoint::is_peft(adapter_folder)) {
    user_error("{}: no adapter; expected a folder with {} and {}", adapter_folder.string(),
               checkpoint::kPeftConfig, checkpoint::kPeftWeights);
  }
  const auto named = arguments.base.empty() ? base_of(adapter_folder) : arguments.base;
  const auto base = checkpoint::open_training(
      {.source = chosen_checkpoint(model_folder(named, /*weights=*/true), -1),
       .with_optimizer = false});
  const auto shape = inference::stored_shape(base, 1);
  const checkpoint::PeftAdapter adapter(adapter_folder, shape);
  const auto& spec = adapter.config().spec;
  const checkpoint::MergedSource merged(base.tensors, adapter.tensors(), spec, shape,
                                        arguments.unmerge);
  auto stored = checkpoint::as_stored(
      merged, checkpoint::FamilyNames(base.about.model, base.tensors.path().string()));
  report::ByteProgress line("merge-adapter");
  stored.report_reads([&](int64_t done, int64_t total) { line.show(done, total); });
  const bool brings_tokenizer = fs::exists(adapter_folder / "tokenizer.json") ||
                                fs::exists(adapter_folder / "tokenizer.model");
  checkpoint::export_hf(stored, arguments.output,
                        {.config = base.about.model,
                         .carry_from = brings_tokenizer ? adapter_folder : base.assets_folder});
  fmt::print("wrote {}: {} {} {} matrices of {}, in float32, stored as they were\n",
             printable(arguments.output.string()), printable(arguments.adapter),
             arguments.unmerge ? "subtracted from" : "added to", count_merged(spec, shape),
             printable(named));
}

}  // namespace

void add_merge_adapter(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<MergeAdapterArguments>();
  auto* command = app.add_subcommand("merge-adapter",
                                     "Add an adapter into the weights beside which it was trained");
  command->footer("Example:\n  tessera merge-adapter org/adapter -o merged");
  command
      ->add_option("ADAPTER", arguments->adapter,
                   "PEFT's folder of an adapter (LoRA, rsLoRA, DoRA), or its name on the Hub")
      ->required();
  command->add_option("--base", arguments->base,
                      "Model to add it to; unless given, the one that its settings name");
  command
      ->add_option("-o,--output", arguments->output, "Hugging Face folder to write; must not exist")
      ->required();
  command->add_flag("--unmerge", arguments->unmerge,
                    "Subtract it from a model that has it (LoRA alone), up to rounding");
  command->callback([arguments, &exit_code] {
    run_merge_adapter(*arguments);
    exit_code = 0;
  });
}

}  // namespace tessera::cli
