// tessera merge-weights: `tessera checkpoint merge --parameters-only` in Accelerate's words.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/dcp.h"
#include "tessera/checkpoint/formats/open_source.h"
#include "tessera/checkpoint/formats/reshard.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/output_file.h"
#include "tessera/report/amount_progress.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct MergeArguments {
  fs::path checkpoint, out;
  bool unsafe = false, remove = false;
};

/// Does `path` lie in `folder`, or is it that folder?
bool lies_in(const fs::path& path, const fs::path& folder) {
  const auto inner = fs::weakly_canonical(path), outer = fs::weakly_canonical(folder);
  const auto [rest, end] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return rest == outer.end();
}

/// A mistaken path must not cost a folder with other things in it.
void check_removable(const fs::path& folder, const fs::path& file) {
  if (!checkpoint::is_checkpoint(folder) && !checkpoint::is_dcp(folder)) {
    user_error(
        "--remove_checkpoint_dir: {}: only a checkpoint's own folder is removed, one of Tessera or "
        "torch.distributed.checkpoint",
        folder.string());
  }
  if (lies_in(file, folder)) {
    user_error("--remove_checkpoint_dir: {} would lie in the checkpoint {}; write it elsewhere",
               file.string(), folder.string());
  }
}

void run_merge_weights(const MergeArguments& arguments) {
  if (arguments.unsafe) {
    user_error(
        "--unsafe_serialization: pickled weights (.bin) are not written; leave it out for "
        ".safetensors, which everything reads");
  }
  auto file = arguments.out;
  if (file.extension() != ".safetensors") file /= "model.safetensors";
  if (arguments.remove) check_removable(arguments.checkpoint, file);
  check_output(file, "choose another OUT");
  report::AmountProgress line("merge-weights");
  checkpoint::reshard({.source = arguments.checkpoint,
                       .destination = file,
                       .parameters_only = true,
                       .progress = [&](int64_t done, int64_t total) { line.show(done, total); }});
  fmt::print("wrote {}\n", file.string());
  if (!arguments.remove) return;
  fs::remove_all(arguments.checkpoint);
  fmt::print("removed {}\n", arguments.checkpoint.string());
}

}  // namespace

void add_merge_weights(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<MergeArguments>();
  auto* command = app.add_subcommand(
      "merge-weights", "Write the weights of a sharded checkpoint as one .safetensors file");
  command->footer(
      "Example:\n  tessera merge-weights output/checkpoint_0/pytorch_model_fsdp_0 merged_weights");
  command
      ->add_option("CHECKPOINT", arguments->checkpoint,
                   "Checkpoint of Tessera, or a folder of torch.distributed.checkpoint, as "
                   "pytorch_model_fsdp_0")
      ->required();
  command
      ->add_option("OUT", arguments->out,
                   "Folder in which to write model.safetensors, or a name that ends in "
                   ".safetensors")
      ->required();
  command->add_flag("--unsafe_serialization,--unsafe-serialization", arguments->unsafe,
                    "Accelerate's way to ask for pickled weights; refused");
  command->add_flag("--remove_checkpoint_dir,--remove-checkpoint-dir", arguments->remove,
                    "Remove CHECKPOINT when all is written");
  command->callback([arguments, &exit_code] {
    run_merge_weights(*arguments);
    exit_code = 0;
  });
}

}  // namespace tessera::cli
