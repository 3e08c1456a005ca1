#include "tessera/train/checkpointing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/open_source.h"
#include "tessera/hub/file_names.h"
#include "tessera/models/hf_config.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

std::string state_name(const std::string& state, const std::string& parameter) {
  return fmt::format("{}{}/{}", checkpoint::kOptimizerPrefix, state, parameter);
}

/// Every tensor of a run, in the order of the model.
checkpoint::Expected expected_tensors(Run& run) {
  checkpoint::Expected all;
  for (const auto& [name, shape, trained, matrix] : run.parameters) {
    all.emplace_back(name, shape);
    if (!trained) continue;
    for (const auto& state : run.optimizer.state_names(matrix)) {
      all.emplace_back(state_name(state, name), shape);
    }
  }
  return all;
}

json state_of(const Run& run, const Counts& counts) {
  json state{{"step", counts.step},
             {"samples_seen", counts.samples_seen},
             {"tokens_seen", counts.tokens_seen},
             {"seeds", {{"model", run.config.model.seed}, {"data", run.config.data.seed}}},
             {"validation_fraction", run.config.data.validation_fraction},
             {"optimizer",
              {{"type", text_of(run.config.optimizer.type)}, {"step", run.optimizer.num_steps()}}}};
  if (run.loss_scaler) {
    const auto& scaler = run.loss_scaler->state();
    state["loss_scaler"] = {{"scale", scaler.scale},
                            {"growth_tracker", scaler.growth_tracker},
                            {"skipped_steps", scaler.skipped_steps}};
  }
  return state;
}

/// Puts a checkpoint's counts into a run.
Counts apply_state(Run& run, const checkpoint::Checkpoint& found) {
  const auto& state = found.index().state;
  Counts counts{.step = found.index().step};
  try {
    counts.samples_seen = state.value("samples_seen", counts.step * run.config.train.global_batch);
    counts.tokens_seen = state.value("tokens_seen", counts.samples_seen * run.config.data.seq_len);
    run.optimizer.set_num_steps(
        state.value("optimizer", json::object()).value("step", counts.step));
    if (run.loss_scaler && state.contains("loss_scaler")) {
      const auto& scaler = state["loss_scaler"];
      run.loss_scaler->load({.scale = scaler.at("scale"),
                             .growth_tracker = scaler.at("growth_tracker"),
                             .skipped_steps = scaler.at("skipped_steps")});
    }
  } catch (const json::exception&) {
    user_error("{}: expected its state as train/checkpointing.h says, got {}",
               found.path().string(), state.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  run.train_loader.go_on(counts.step, counts.samples_seen);
  return counts;
}

Counts load_open(Run& run, const checkpoint::Checkpoint& found) {
  auto held = held_state(run);
  if (!run.config.checkpoint.strict) {
    std::erase_if(held, [&](const auto& part) { return !found.contains(part.piece.name); });
  }
  checkpoint::load_parts(found, held);
  run.parallel.values_changed();
  return apply_state(run, found);
}

/// What a resumed run does otherwise than the one that saved.
std::vector<std::string> differences(const Run& run, const checkpoint::Checkpoint& found) {
  std::vector<std::string> notes;
  const auto seeds = found.index().state.value("seeds", json::object());
  const std::pair<const char*, int64_t> now[] = {{"model", run.config.model.seed},
                                                 {"data", run.config.data.seed}};
  for (const auto& [name, seed] : now) {
    if (!seeds.contains(name) || seeds[name] == seed) continue;
    notes.push_back(fmt::format("{}.seed is {}, but {} where the checkpoint was saved: {} differ",
                                name, seed, seeds[name].dump(),
                                std::string_view(name) == "data" ? "samples" : "dropped numbers"));
  }
  const double held_out = run.config.data.validation_fraction;
  const auto before = found.index().state.find("validation_fraction");
  if (before != found.index().state.end() && *before != held_out) {
    notes.push_back(fmt::format(
        "data.validation_fraction is {}, but {} where the checkpoint was saved: some of what is "
        "held out was trained on",
        held_out, before->dump()));
  }
  return notes;
}

fs::path directory_of(const config::RunConfig& config) {
  return config.checkpoint.dir.empty() ? fs::path(config.train.run_dir) / "checkpoints"
                                       : fs::path(config.checkpoint.dir);
}

/// The checkpoints in a folder, newest first; the same on all ranks, as rank 0 sees them.
std::vector<fs::path> candidates(const Run& run, const fs::path& directory) {
  const auto& axis = run.world;
  const auto listed = checkpoint::agree(axis, [&] {
    std::string lines;
    if (axis.rank() != 0) return lines;
    auto folders = checkpoint::step_folders(directory);
    std::ranges::reverse(folders);
    for (const auto& folder : folders) lines += folder.path.string() + '\n';
    return lines;
  })[0];
  std::vector<fs::path> paths;
  for (size_t begin = 0; begin < listed.size();) {
    const auto end = listed.find('\n', begin);
    paths.emplace_back(listed.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

/// Files that a model's users want beside its weights.
std::vector<fs::path> assets_of(const fs::path& model_folder) {
  std::vector<fs::path> found;
  if (model_folder.empty()) return found;
  for (const auto name : hub::kTextFiles) {
    if (fs::is_regular_file(model_folder / name)) found.push_back(model_folder / name);
  }
  return found;
}

/// config.json: the one that the model came with, unless the job file changed its shape.
json model_config(const Run& run) {
  const auto& shape = run.model->shape();
  if (!run.config.model.path.empty()) {
    const auto file = fs::path(run.config.model.path) / "config.json";
    if (models::read_model_shape(file) == shape) return json::parse(read_file(file));
  }
  return models::to_hf_config(shape);
}

checkpoint::SaverOptions saver_options(const Run& run) {
  const auto& section = run.config.checkpoint;
  const auto& parallel = run.config.parallel;
  return {.directory = directory_of(run.config),
          // A run that saves at its end alone has nothing to go on with: no memory for a copy.
          .async = section.async && (section.every > 0 || section.every_minutes > 0),
          .verify = section.verify,
          .retention = {.keep_last = section.keep_last,
                        .keep_every = section.keep_every,
                        .keep_best = section.keep_best},
          .layout = {{"num_ranks", run.world.size()},
                     {"placement", text_of(parallel.placement)},
                     {"tp", run.tensor_axis.size()},
                     {"pp", run.pipeline_axis.size()},
                     {"units", text_of(parallel.units)}},
          .model = model_config(run),
          .config = config::to_yaml(run.config),
          .assets = assets_of(run.config.model.path)};
}

/// Checkpoints in the folder that this run does not go on from: of later steps, or all if it starts
/// anew. Damaged ones get out of the way under another name.
void make_room(const config::RunConfig& config, const Resumed& resumed) {
  const auto directory = directory_of(config);
  for (const auto& path : resumed.damaged) {
    auto aside = path;
    aside += ".damaged";
    std::error_code ignored;
    fs::remove_all(aside, ignored);
    fs::rename(path, aside, ignored);  // where it cannot be, the next save says why
  }
  for (const auto& [step, path] : checkpoint::step_folders(directory)) {
    if (resumed.counts.step > 0 && step <= resumed.counts.step) continue;
    if (!config.checkpoint.overwrite) {
      user_error(
          "{}: holds a checkpoint of an earlier run (step {}); set checkpoint.resume to auto to go "
          "on from it, checkpoint.overwrite to true to remove it, or another train.run_dir",
          directory.string(), step);
    }
    checkpoint::remove_checkpoint(path);
  }
}

}  // namespace

std::vector<checkpoint::Part> held_parts(const parallel::DataParallel& parallel,
                                         const PartStates& states,
                                         const std::function<std::string(std::string)>& named,
                                         const parallel::TensorParts& divided) {
  std::vector<checkpoint::Part> parameters, kept;
  const auto parts = parallel.parts();
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& part = parts[i];
    const auto& piece = part.piece;
    const auto own = named(piece.name);
    const auto found = divided.find(piece.name);
    const bool whole = found == divided.end();
    const auto& shape = whole ? piece.shape : found->second.shape;
    const auto stripe = whole ? Stripe() : found->second.stripe;
    const auto add = [&](auto& list, std::string name, const torch::Tensor& values) {
      list.push_back(checkpoint::make_part(std::move(name), shape, piece.begin, values, stripe));
      list.back().replicas = part.replicas;
      list.back().replica = part.replica;
      list.back().sharers = part.sharers;
    };
    add(parameters, own, piece.part);
    for (const auto& [state, tensor] : states(i, part)) {
      add(kept, state_name(state, own), tensor);
    }
  }
  parameters.insert(parameters.end(), kept.begin(), kept.end());
  return parameters;
}

std::vector<checkpoint::Part> held_state(Run& run) {
  const auto states = [&](size_t, const parallel::DataParallel::Part& part) {
    std::vector<std::pair<std::string, torch::Tensor>> found;
    if (!part.slice) return found;
    found = run.optimizer.states(*part.slice);
    for (auto& [name, state] : found) {
      state = state.narrow(0, part.offset, part.piece.part.numel());
    }
    return found;
  };
  return held_parts(run.parallel, states, std::identity{}, run.tensor_parts);
}

Counts load_checkpoint(Run& run, const fs::path& folder) {
  Counts counts;
  checkpoint::agree(run.world, [&] {
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
  const auto directory = automatic ? directory_of(run.config) : fs::path(wish);
  const auto found =
      checkpoint::is_checkpoint(directory) ? std::vector{directory} : candidates(run, directory);
  for (const auto& folder : found) {
    std::optional<checkpoint::Checkpoint> opened;
    try {
      checkpoint::agree(run.world, [&] { return opened.emplace(folder), ""; });
    } catch (const UserError& error) {
      resumed.notes.push_back(fmt::format("passed over: {}", error.what()));
      resumed.damaged.push_back(folder);
      continue;
    }
    checkpoint::check_expected(*opened, expected_tensors(run), run.config.checkpoint.strict);
    try {
      checkpoint::agree(run.world, [&] {
        resumed.counts = load_open(run, *opened);
        return "";
      });
    } catch (const UserError& error) {
      resumed.notes.push_back(fmt::format("passed over: {}", error.what()));
      resumed.damaged.push_back(folder);
      continue;
    }
    for (auto& note : differences(run, *opened)) resumed.notes.push_back(std::move(note));
    resumed.notes.push_back(fmt::format("resumed from {}: step {}, saved by {} rank(s)",
                                        folder.string(), resumed.counts.step,
                                        opened->index().layout.value("num_ranks", 1)));
    return resumed;
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

Checkpointing::Checkpointing(Run& run, const Resumed& resumed)
    : run_(run), last_save_(std::chrono::steady_clock::now()) {
  if (!run.config.checkpoint.saves()) return;
  saver_ = std::make_unique<checkpoint::Saver>(run.save_axis, held_state(run), saver_options(run));
  checkpoint::agree(run.world, [&] {
    if (run.world.rank() == 0) make_room(run.config, resumed);
    return "";
  });
}

bool Checkpointing::wanted() const {
  const double minutes = run_.config.checkpoint.every_minutes;
  return saver_ && minutes > 0 && run_.world.rank() == 0 &&
         std::chrono::steady_clock::now() - last_save_ >=
             std::chrono::duration<double, std::ratio<60>>(minutes);
}

std::vector<std::string> Checkpointing::after_step(const Counts& counts,
                                                   std::optional<double> validation_loss,
                                                   const Wishes& wishes) {
  if (!saver_) return {};
  const auto& section = run_.config.checkpoint;
  const bool last = counts.step == run_.config.train.steps && section.at_end;
  const bool regular = section.every > 0 && counts.step % section.every == 0;
  if (last || regular || wishes.save || wishes.stop) {
    saver_->save(
        {.step = counts.step, .state = state_of(run_, counts), .validation_loss = validation_loss});
    last_save_ = std::chrono::steady_clock::now();
  }
  return take_messages();
}

std::vector<std::string> Checkpointing::finish() {
  if (!saver_) return {};
  saver_->finish();
  auto messages = take_messages();
  if (!last_error_.empty()) throw SystemError(last_error_);
  return messages;
}

std::vector<std::string> Checkpointing::take_messages() {
  std::vector<std::string> messages;
  for (const auto& report : saver_->take_reports()) {
    if (report.error.empty()) {
      last_error_.clear();
      messages.push_back(fmt::format("saved step {}: {} a rank in {}, training stood still for {}",
                                     report.step, format_bytes(report.num_bytes),
                                     format_seconds(report.total_seconds),
                                     format_seconds(report.wait_seconds + report.stall_seconds)));
      constexpr double kNoticeable = 0.1;
      if (report.wait_seconds > kNoticeable) {
        messages.back() += fmt::format(", {} of it because the save before was still under way",
                                       format_seconds(report.wait_seconds));
      }
      if (!report.removed.empty()) {
        messages.back() += fmt::format("; removed step {}", fmt::join(report.removed, ", "));
      }
      if (!report.removal_error.empty()) messages.back() += "; " + report.removal_error;
    } else {
      last_error_ = fmt::format("step {}: no checkpoint: {}", report.step, report.error);
      messages.push_back(last_error_);
    }
  }
  return messages;
}

}  // namespace tessera::train
