#include "tessera/train/checkpointing.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/random.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/run_on_all.h"
#include "tessera/config/precision.h"
#include "tessera/hub/file_names.h"
#include "tessera/models/hf_config.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

std::string state_name(const std::string& state, const std::string& parameter) {
  return fmt::format("{}{}/{}", checkpoint::kOptimizerPrefix, state, parameter);
}

json state_of(const Run& run, const Counts& counts) {
  json state{{"step", counts.step},
             {"samples_seen", counts.samples_seen},
             {"tokens_seen", counts.tokens_seen},
             {"num_steps", run.num_steps},
             {"seeds", {{"model", run.config.model.seed}, {"data", run.config.data.seed}}},
             {"validation_fraction", run.config.data.validation_fraction},
             {"precision", config::to_json(config::precision_row(run.config.precision))},
             {"optimizer",
              {{"type", text_of(run.config.optimizer.type)}, {"step", run.optimizer.num_steps()}}}};
  if (counts.best.loss || counts.best.since > 0) state["best_validation"] = to_json(counts.best);
  if (run.loss_scaler) {
    const auto& scaler = run.loss_scaler->state();
    state["loss_scaler"] = {{"scale", scaler.scale},
                            {"growth_tracker", scaler.growth_tracker},
                            {"skipped_steps", scaler.skipped_steps}};
  }
  return state;
}

/// What fp8_delayed keeps of a layer goes by its weight's name.
std::string fp8_state_name(const std::string& path) {
  return state_name("fp8_history", path + ".weight");
}

/// A state that is the same on all ranks that share a layer, those of dp and tp; `kind`: of which there
/// are several.
checkpoint::HeldExtent held_by_stage(const Run& run, const std::string& name,
                                     const torch::Tensor& state, std::string_view kind) {
  auto held = checkpoint::held_extent(name, state.sizes().vec(), /*begin=*/0, state.view(-1));
  held.replicas = run.data_axis.size() * run.tensor_axis.size();
  held.replica = run.data_axis.rank() * run.tensor_axis.size() + run.tensor_axis.rank();
  held.replica_group = fmt::format("{} of stage {}", kind, run.pipeline_axis.rank());
  return held;
}

/// The shape of what an optimizer keeps of a parameter.
std::vector<int64_t> state_shape(const std::vector<int64_t>& parameter, int64_t block) {
  if (block == 1) return parameter;
  return {(c10::multiply_integers(parameter) + block - 1) / block};
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

checkpoint::SaverOptions saver_options(const Run& run) {
  const auto& section = run.config.checkpoint;
  const auto& parallel = run.config.parallel;
  return {.directory = checkpoint_folder(run.config),
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

/// Is it one of those in the folder? Where other runs keep theirs nothing is changed.
bool is_in(const fs::path& directory, const fs::path& checkpoint) {
  std::error_code ignored;
  return fs::equivalent(fs::absolute(checkpoint).lexically_normal().parent_path(), directory,
                        ignored);
}

/// Checkpoints in the folder that this run does not go on from: of later steps, or all if it starts
/// anew. Damaged ones get out of the way under another name. The one it goes on from stays.
void make_room(const config::RunConfig& config, const Resumed& resumed) {
  const auto directory = checkpoint_folder(config);
  for (const auto& path : resumed.damaged) {
    if (is_in(directory, path)) checkpoint::set_aside(path);
  }
  auto others = checkpoint::step_folders(directory);
  std::erase_if(others, [&](const auto& other) {
    std::error_code ignored;
    return !resumed.source.empty() && (other.step <= resumed.counts.step ||
                                       fs::equivalent(other.path, resumed.source, ignored));
  });
  if (!others.empty() && !config.checkpoint.overwrite) {
    user_error(
        "{}: holds checkpoints of an earlier run (to step {}); set checkpoint.resume to auto to go "
        "on from the last, checkpoint.overwrite to true to remove them, or another train.run_dir",
        directory.string(), others.back().step);
  }
  for (const auto& other : others) checkpoint::remove_checkpoint(other.path);
}

/// The validation losses of the checkpoints that are in the folder.
std::vector<double> stored_losses(const config::RunConfig& config) {
  std::vector<double> losses;
  for (const auto& [path, marker] : checkpoint::complete_checkpoints(checkpoint_folder(config))) {
    if (marker.validation_loss) losses.push_back(*marker.validation_loss);
  }
  return losses;
}

/// The run's id, kept beside its checkpoints: the folder's own where the run goes on there.
std::string agreed_run_id(const config::RunConfig& config, const Resumed& resumed) {
  const auto directory = checkpoint_folder(config);
  std::string id;
  if (config.checkpoint.resume != "none") id = run_id_in(directory);
  if (id.empty() && !resumed.source.empty() && is_in(directory, resumed.source))
    id = resumed.run_id;
  if (id.empty()) id = random_hex(16);
  if (id != run_id_in(directory)) write_file(directory / kRunIdFile, id);
  return id;
}

/// Writes what a PiSSA run began with beside its checkpoints, if it is not there.
void keep_initial(const Run& run) {
  if (!run.initial) return;
  const auto folder = checkpoint_folder(run.config) / checkpoint::kInitialAdapter;
  if (run.initial->tensors->path() == folder.lexically_normal()) return;  // where it was found
  fs::remove_all(folder);                                                 // of another run
  checkpoint::write_peft(*run.initial->tensors, run.model->shape(), folder,
                         {.config = {.spec = run.initial->spec},
                          .dtype = {},
                          .experts = models::ExpertFormat::per_expert});
}

}  // namespace

checkpoint::Expected expected_tensors(Run& run) {
  checkpoint::Expected all;
  for (const auto& [name, shape, trained, treatment] : run.parameters) {
    if (!trained) continue;
    all.emplace_back(name, shape);
    for (const auto& kind : run.optimizer.state_kinds(treatment)) {
      all.emplace_back(state_name(kind.name, name), state_shape(shape, kind.block));
    }
  }
  for (const auto& layer : run.fp8) {
    if (!layer.history) continue;
    all.emplace_back(fp8_state_name(layer.path), layer.history->state().sizes().vec());
  }
  if (run.balance && run.balance->has_biases()) {
    for (const auto& layer : run.balance->all()) {
      all.emplace_back(layer.bias_name(),
                       std::vector<int64_t>{layer.router->options().num_experts});
    }
  }
  return all;
}

std::vector<checkpoint::HeldExtent> held_parts(const parallel::DataParallel& parallel,
                                               const PartStates& states,
                                               const std::function<std::string(std::string)>& named,
                                               const parallel::TensorParts& divided) {
  std::vector<checkpoint::HeldExtent> parameters, kept;
  const auto parts = parallel.parts();
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& part = parts[i];
    const auto& extent = part.extent;
    const auto parameter = named(extent.name);
    const auto found = divided.find(extent.name);
    const bool whole = found == divided.end();
    const auto& shape = whole ? extent.shape : found->second.shape;
    const auto stripe = whole ? Stripe() : found->second.stripe;
    const auto add = [&](auto& list, std::string name, const torch::Tensor& values, int64_t block,
                         const offload::StoredBytes& stored) {
      auto own = stripe;
      if (block > 1) {
        const auto in_blocks = stripe.of_blocks(block, c10::multiply_integers(shape));
        TORCH_INTERNAL_ASSERT(in_blocks && extent.begin % block == 0);
        own = *in_blocks;
      }
      list.push_back(checkpoint::held_extent(std::move(name), state_shape(shape, block),
                                             extent.begin / block, values, own));
      list.back().stored = stored;
      list.back().replicas = part.replicas;
      list.back().replica = part.replica;
      list.back().replica_group = part.replica_group;
    };
    add(parameters, parameter, extent.values, /*block=*/1, part.stored);
    for (const auto& [state, values, block, stored] : states(i, part)) {
      add(kept, state_name(state, parameter), values, block, stored);
    }
  }
  parameters.insert(parameters.end(), kept.begin(), kept.end());
  return parameters;
}

std::vector<checkpoint::HeldExtent> held_state(Run& run) {
  const auto states = [&](size_t, const parallel::DataParallel::Part& part) {
    std::vector<PartState> found;
    if (!part.slice) return found;
    const auto kept = run.optimizer.states(*part.slice);
    for (size_t i = 0; i < kept.size(); ++i) {
      const auto& [kind, values] = kept[i];
      found.push_back({.name = kind.name,
                       .values = values.narrow(0, part.offset / kind.block,
                                               kind.count(part.extent.values.numel())),
                       .block = kind.block});
      if (values.is_meta()) found.back().stored = run.optimizer.stored_state(*part.slice, i);
    }
    return found;
  };
  auto held = held_parts(run.parallel, states, std::identity{}, run.tensor_parts);
  std::set<std::string> frozen;
  for (const auto& parameter : run.parameters) {
    if (!parameter.trained) frozen.insert(parameter.name);
  }
  std::erase_if(held, [&](const auto& part) { return frozen.contains(part.extent.name); });
  for (const auto& layer : run.fp8) {
    if (!layer.history || !layer.is_here) continue;
    held.push_back(held_by_stage(run, fp8_state_name(layer.path), layer.history->state(), "fp8"));
  }
  if (run.balance && run.balance->has_biases()) {
    for (const auto& layer : run.balance->here()) {
      held.push_back(held_by_stage(run, layer.bias_name(), layer.router->selection_bias, "biases"));
    }
  }
  return held;
}

Checkpointing::Checkpointing(Run& run, const Resumed& resumed)
    : run_(run), last_save_(std::chrono::steady_clock::now()) {
  if (!run.config.checkpoint.saves()) return;
  saver_ = std::make_unique<checkpoint::Saver>(run.save_axis, held_state(run), saver_options(run));
  data_ = data_of(run);
  base_ = base_of(run);
  run_id_ = checkpoint::run_on_all(run.world, [&]() -> std::string {
    if (run.world.rank() != 0) return "";
    make_room(run.config, resumed);
    keep_initial(run);
    return agreed_run_id(run.config, resumed);
  })[0];
  const auto losses = checkpoint::run_on_all(run.world, [&]() -> std::string {
    return run.world.rank() == 0 ? json(stored_losses(run.config)).dump() : "";
  })[0];
  for (const double loss : json::parse(losses).get<std::vector<double>>()) is_among_best(loss);
}

bool Checkpointing::is_among_best(std::optional<double> validation_loss) {
  const auto most = static_cast<size_t>(run_.config.checkpoint.keep_best);
  if (!validation_loss || !std::isfinite(*validation_loss)) return false;
  if (best_.size() >= most && (most == 0 || *validation_loss >= best_.back())) return false;
  best_.insert(std::ranges::upper_bound(best_, *validation_loss), *validation_loss);
  if (best_.size() > most) best_.pop_back();
  return true;
}

bool Checkpointing::wanted() const {
  const double minutes = run_.config.checkpoint.every_minutes;
  return saver_ && minutes > 0 && run_.world.rank() == 0 &&
         std::chrono::steady_clock::now() - last_save_ >=
             std::chrono::duration<double, std::ratio<60>>(minutes);
}

std::vector<std::string> Checkpointing::after_step(const Counts& counts,
                                                   std::optional<double> validation_loss,
                                                   const StepRequests& requests) {
  if (!saver_) return {};
  const auto& section = run_.config.checkpoint;
  const bool last = is_done(run_, counts) && section.at_end;
  const bool regular = section.every > 0 && counts.step % section.every == 0;
  const bool best = is_among_best(validation_loss);
  if ((last || regular || best || requests.save || requests.stop) && counts.step != last_saved_) {
    auto state = state_of(run_, counts);
    state["run_id"] = run_id_;
    state["data"] = data_;
    if (base_) checkpoint::put_base_weights(*base_, state);
    saver_->save(
        {.step = counts.step, .state = std::move(state), .validation_loss = validation_loss});
    last_save_ = std::chrono::steady_clock::now();
    last_saved_ = counts.step;
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
