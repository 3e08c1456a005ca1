#include "tessera/checkpoint/formats/reshard.h"

#include <cassert>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/checkpoint/formats/write_tensor.h"
#include "tessera/checkpoint/pending_folder.h"
#include "tessera/checkpoint/write_checkpoint.h"

namespace tessera::checkpoint {
namespace {

void write_plain(const TrainingSource& training, const std::filesystem::path& path) {
  const auto& tensors = training.tensors.tensors();
  if (tensors.empty()) {
    user_error("{}: holds no parameters (an optimizer's state?); name the model's folder",
               training.tensors.path().string());
  }
  if (path.has_parent_path()) make_folder(path.parent_path());
  write_safetensors(training.tensors, {tensors.begin(), tensors.end()}, path,
                    {{"format", "pt"}, {"step", std::to_string(training.about.step)}});
}

}  // namespace

void reshard(const ReshardOptions& options) {
  refuse_existing(options.destination);
  const bool plain = options.destination.extension() == ".safetensors";
  auto training = open_training(
      {.source = options.source, .with_optimizer = !options.parameters_only, .our_names = !plain});
  if (!plain && training.stored.front().format != Format::tessera) {
    user_error("{}: expected a checkpoint of Tessera, got {}; see tessera checkpoint convert",
               options.source.string(), format_name(training.stored.front().format));
  }
  training.tensors.report_reads(options.progress);
  if (plain) {
    assert(options.num_files == 1);
    return write_plain(training, options.destination);
  }
  write_checkpoint(training.tensors, options.destination,
                   {.about = training.about,
                    .validation_loss = training.validation_loss,
                    .assets = training.assets,
                    .num_files = options.num_files});
}

}  // namespace tessera::checkpoint
