#include "tessera/train/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "tessera/base/digest.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/strict_json.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/formats/bitsandbytes.h"
#include "tessera/checkpoint/formats/open_source.h"
#include "tessera/checkpoint/run_on_all.h"
#include "tessera/models/adapter_json.h"
#include "tessera/models/hf_config.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/differences.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

/// Puts a checkpoint's counts into a run.
Counts apply_state(Run& run, const checkpoint::Checkpoint& found) {
  const auto& state = found.index().state;
  Counts counts{.step = found.index().step};
  try {
    counts.samples_seen = state.value("samples_seen", counts.step * run.config.train.global_batch);
    counts.tokens_seen = state.value("tokens_seen", counts.samples_seen * run.config.data.seq_len);
    run.optimizer.set_num_steps(
        state.value("optimizer", json::object()).value("step", counts.step));
    if (state.contains("best_validation")) {
      counts.best = best_validation_of(state["best_validation"]);
    }
    if (run.loss_scaler && state.contains("loss_scaler")) {
      const auto& scaler = state["loss_scaler"];
      run.loss_scaler->load({.scale = scaler.at("scale"),
                             .growth_tracker = scaler.at("growth_tracker"),
                             .skipped_steps = scaler.at("skipped_steps")});
    }
  } catch (const json::exception&) {
    user_error("{}: expected its state as train/resume.h says, got {}", found.path().string(),
               state.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  run.train_loader.go_on(counts.step, counts.samples_seen);
  set_length(run, counts.step, counts.samples_seen);
  return counts;
}

Counts load_open(Run& run, const checkpoint::Checkpoint& found) {
  auto held = held_state(run);
  if (!run.config.checkpoint.strict) {
    std::erase_if(held, [&](const auto& part) { return !found.contains(part.extent.name); });
  }
  checkpoint::load_extents(found, held);
  run.parallel.values_changed();
  return apply_state(run, found);
}

/// The checkpoints in a folder, newest first; the same on all ranks, as rank 0 sees them.
std::vector<fs::path> candidates(const Run& run, const fs::path& directory) {
  const auto& axis = run.world;
  const auto listed = checkpoint::run_on_all(axis, [&] {
    std::string lines;
    if (axis.rank() != 0) return lines;
    auto folders = checkpoint::step_folders(directory);
    std::ranges::reverse(folders);
    for (const auto& folder : folders) lines += folder.path.string() + '\0';
    return lines;
  })[0];
  std::vector<fs::path> paths;
  for (size_t begin = 0; begin < listed.size();) {
    const auto end = listed.find('\0', begin);
    paths.emplace_back(listed.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

/// The id that the checkpoint's run had; "": it is of another program, or older.
std::string run_id_of(const checkpoint::Checkpoint& found) {
  const auto& state = found.index().state;
  return state.is_object() ? state.value("run_id", "") : "";
}

/// A checkpoint that somebody put into this run's folder is not its newest. Whoever wants to go on
/// from it names it.
void check_own(const fs::path& directory, const checkpoint::Checkpoint& found) {
  const auto own = run_id_in(directory), other = run_id_of(found);
  if (own.empty() || other.empty() || own == other) return;
  user_error(
      "{}: of another run (id {}) than the folder's (id {}); move it away, or set "
      "checkpoint.resume to it",
      found.path().string(), other, own);
}

/// Biases that a checkpoint's run learned stay where moe.selection_bias_rate is 0 now.
void take_learned_biases(Run& run, const checkpoint::Checkpoint& found) {
  if (!run.balance) return;
  const auto has_bias = [&](const LayerRouter& layer) { return found.contains(layer.bias_name()); };
  if (std::ranges::none_of(run.balance->all(), has_bias)) return;
  if (run.config.moe.sampling != nn::ExpertSampling::none) {
    user_error("moe.sampling: expected none beside the selection biases of {}; set none",
               found.path().string());
  }
  run.balance->add_biases();
}

/// Reads `folder` into the run. DamagedCheckpoint: the next one may do. Collective.
void go_on_from(Run& run, const fs::path& directory, const fs::path& folder, Resumed& resumed) {
  std::optional<checkpoint::Checkpoint> opened;
  checkpoint::run_on_all(run.world, [&] { return opened.emplace(folder), ""; });
  const auto base = base_of(run);
  std::vector<std::string> notes;
  const auto add = [&](std::vector<std::string> more) {
    notes.insert(notes.end(), std::move_iterator(more.begin()), std::move_iterator(more.end()));
  };
  checkpoint::run_on_all(run.world, [&] {
    checkpoint::check_name(folder, opened->index().step);
    if (run.config.checkpoint.resume == "auto") check_own(directory, *opened);
    check_same_base(base, *opened);
    take_learned_biases(run, *opened);
    const auto expected = expected_tensors(run);
    const bool strict = run.config.checkpoint.strict;
    if (strict) check_same_states(run, *opened, expected);
    add(checkpoint::check_expected(*opened, expected, strict));
    add(check_same_function(run, *opened));
    return "";
  });
  checkpoint::run_on_all(run.world, [&] {
    resumed.counts = load_open(run, *opened);
    return "";
  });
  add(differences(run, *opened));
  const auto& layout = opened->index().layout;
  notes.push_back(fmt::format("resumed from {}: step {}, saved by {} rank(s)", folder.string(),
                              resumed.counts.step,
                              layout.is_object() ? layout.value("num_ranks", 1) : 1));
  resumed.notes.insert(resumed.notes.end(), std::move_iterator(notes.begin()),
                       std::move_iterator(notes.end()));
  resumed.source = folder;
  resumed.run_id = run_id_of(*opened);
}

}  // namespace

bool is_done(const Run& run, const Counts& counts) {
  return counts.step >= run.num_steps || !early_end(run, counts).empty();
}

std::string early_end(const Run& run, const Counts& counts) {
  const auto& best = counts.best;
  if (counts.step >= run.num_steps || !best.is_over(run.config.train.early_stopping_patience)) {
    return "";
  }
  return fmt::format("ended at step {} of {}: {} validations without a better loss than {}",
                     counts.step, run.num_steps, best.since,
                     best.loss ? fmt::format("{:.4f} of step {}", *best.loss, best.step) : "NaN");
}

fs::path checkpoint_folder(const config::RunConfig& config) {
  return config.checkpoint.dir.empty() ? fs::path(config.train.run_dir) / "checkpoints"
                                       : fs::path(config.checkpoint.dir);
}

std::string run_id_in(const fs::path& folder) {
  const auto file = folder / kRunIdFile;
  return is_there(file) ? read_file(file) : "";
}

json model_config(const Run& run) {
  const auto& shape = run.model->shape();
  if (!run.config.model.path.empty()) {
    const auto file = fs::path(run.config.model.path) / "config.json";
    if (models::read_model_shape(file) == shape) {
      // An index, which is nested deeper by one, must be read again.
      return checkpoint::dequantised_config(
          parse_strict_json(file, read_file(file), kMaxJsonDepth - 8));
    }
  }
  return models::to_hf_config(shape);
}

json data_of(const Run& run) {
  const auto& rows = run.train_loader.data();
  return {{"tokens", rows.num_tokens()}, {"sample", rows.digest()}};
}

std::optional<checkpoint::BaseWeights> base_of(const Run& run) {
  if (run.adapter.type == models::AdapterType::none) return {};
  const auto& section = run.config.model;
  const bool is_stored = section.init == models::Init::pretrained;
  auto sample = checkpoint::run_on_all(run.world, [&]() -> std::string {
    if (run.world.rank() != 0) return "";
    if (is_stored) return checkpoint::sample_of_weights(section.path);
    return sha256(json{section.seed, section.init_std}.dump());
  })[0];
  checkpoint::BaseWeights base{
      .path = is_stored ? fs::absolute(section.path).lexically_normal().string() : "",
      .sample = std::move(sample),
      .adapters = {},
      .adapter = models::to_json(run.adapter)};
  for (const auto& folder : run.config.adapter.base) {
    base.adapters.push_back(checkpoint::base_adapter(folder));
  }
  return base;
}

Counts load_checkpoint(Run& run, const fs::path& folder) {
  Counts counts;
  checkpoint::run_on_all(run.world, [&] {
    const checkpoint::Checkpoint found(folder);
    checkpoint::check_expected(found, expected_tensors(run), run.config.checkpoint.strict);
    counts = load_open(run, found);
    return "";
  });
  return counts;
}

Resumed resume(Run& run) {
  const auto& wish = run.config.checkpoint.resume;
  Resumed resumed;
  if (wish == "none") return resumed;
  const bool automatic = wish == "auto";
  const auto directory = automatic ? checkpoint_folder(run.config) : fs::path(wish);
  const auto found =
      checkpoint::is_checkpoint(directory) ? std::vector{directory} : candidates(run, directory);
  for (const auto& folder : found) {
    try {
      go_on_from(run, directory, folder, resumed);
      return resumed;
    } catch (const checkpoint::DamagedCheckpoint& error) {
      resumed.notes.push_back(fmt::format("passed over: {}", error.what()));
      resumed.damaged.push_back(folder);
    }
  }
  if (!found.empty()) {
    user_error("checkpoint.resume: {}: none of {} checkpoints is usable; {}", directory.string(),
               found.size(), fmt::join(resumed.notes, "; "));
  }
  if (!automatic) {
    user_error("checkpoint.resume: expected a checkpoint or a folder of them, got '{}'", wish);
  }
  resumed.notes.push_back(
      fmt::format("no checkpoint in {} yet: starting anew", directory.string()));
  return resumed;
}

}  // namespace tessera::train
