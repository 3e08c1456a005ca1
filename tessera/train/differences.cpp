#include "tessera/train/differences.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/models/hf_config.h"
#include "tessera/train/resume.h"

namespace tessera::train {
namespace {

using nlohmann::json;

/// Keys of config.json on which no value that a model computes depends.
bool changes_nothing(const std::string& key, bool scaled_rope) {
  static const std::set<std::string> kKeys{"architectures",     "bos_token_id", "eos_token_id",
                                           "attention_dropout", "attn_pdrop",   "embd_pdrop",
                                           "resid_pdrop",       "n_positions"};
  return kKeys.contains(key) || (key == "max_position_embeddings" && !scaled_rope);
}

/// The settings of a resolved job file as config::to_yaml writes it: "section.key" and its value.
std::map<std::string, std::string> settings_in(const std::string& yaml) {
  std::map<std::string, std::string> settings;
  std::istringstream lines(yaml);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    if (line.front() != ' ') {
      section = line.substr(0, colon);
      continue;
    }
    const auto key = line.find_first_not_of(' ');
    const auto value = line.find_first_not_of(' ', colon + 1);
    settings[section + "." + line.substr(key, colon - key)] =
        value == std::string::npos ? "" : line.substr(value);
  }
  return settings;
}

/// Does a setting decide what is trained and how? Not where files lie, what is shown, and what of
/// it is compared by its content instead.
bool matters(const std::string& key) {
  static const std::set<std::string> kOfTrain{"train.steps", "train.epochs", "train.global_batch",
                                              "train.nonfinite"};
  static const std::set<std::string> kOfData{
      "data.seq_len", "data.shuffle",       "data.packing",     "data.too_long",
      "data.weights", "data.document_mask", "data.document_end"};
  return key.starts_with("optimizer.") || key.starts_with("schedule.") ||
         key.starts_with("precision.") || key.starts_with("moe.") || kOfTrain.contains(key) ||
         kOfData.contains(key);
}

std::string was(const std::string& key, const std::string& now, const std::string& before) {
  return fmt::format("{} is {}, but {} where the checkpoint was saved", key, now, before);
}

void add_seeds(const Run& run, const json& state, std::vector<std::string>& notes) {
  const auto seeds = state.value("seeds", json::object());
  const std::pair<const char*, int64_t> now[] = {{"model", run.config.model.seed},
                                                 {"data", run.config.data.seed}};
  for (const auto& [name, seed] : now) {
    if (!seeds.contains(name) || seeds[name] == seed) continue;
    notes.push_back(
        fmt::format("{}: {} differ",
                    was(fmt::format("{}.seed", name), fmt::format("{}", seed), seeds[name].dump()),
                    std::string_view(name) == "data" ? "samples" : "dropped numbers"));
  }
  const auto steps = state.value("num_steps", run.num_steps);
  if (run.config.train.epochs > 0 && steps != run.num_steps) {
    notes.push_back(
        fmt::format("train.epochs {} comes to {} steps, to {} where the checkpoint was saved",
                    run.config.train.epochs, run.num_steps, steps));
  }
  const double held_out = run.config.data.validation_fraction;
  const auto before = state.find("validation_fraction");
  if (before != state.end() && *before != held_out) {
    notes.push_back(
        fmt::format("{}: some of what is held out was trained on",
                    was("data.validation_fraction", fmt::format("{}", held_out), before->dump())));
  }
}

}  // namespace

std::vector<std::string> check_same_function(const Run& run, const checkpoint::Checkpoint& found) {
  const auto& stored = found.index().model;
  if (!stored.is_object() || stored.empty()) return {};
  const auto where = fmt::format("{}: model", (found.path() / checkpoint::kIndexFile).string());
  const json before = models::to_hf_config(models::model_shape_of(stored, where));
  const json now = models::to_hf_config(run.model->shape());
  const bool scaled_rope = now.contains("rope_scaling") && !now["rope_scaling"].is_null();
  std::vector<std::string> others, notes;
  for (const auto& [key, value] : now.items()) {
    const auto old = before.contains(key) ? before[key] : json();
    if (old == value) continue;
    const auto line = was("config.json: " + key, value.dump(), old.dump());
    (changes_nothing(key, scaled_rope) ? notes : others).push_back(line);
  }
  if (!others.empty() && run.config.checkpoint.strict) {
    user_error(
        "checkpoint.resume: {}: of another model: {}; set the model as it was, or "
        "checkpoint.strict to false to go on all the same",
        found.path().string(), fmt::join(others, "; "));
  }
  notes.insert(notes.begin(), others.begin(), others.end());
  return notes;
}

void check_same_states(const Run& run, const checkpoint::Checkpoint& found,
                       const checkpoint::Expected& expected) {
  size_t there = 0;
  for (const auto& [name, shape] : expected) there += found.contains(name) ? 1 : 0;
  if (there == expected.size() && there == found.tensors().size()) return;
  const auto before = settings_in(found.index().config),
             now = settings_in(config::to_yaml(run.config));
  std::vector<std::string> others;
  for (const char* key : {"optimizer.type", "optimizer.momentum", "precision.optimizer_states"}) {
    const auto old = before.find(key), own = now.find(key);
    if (old == before.end() || own == now.end() || old->second == own->second) continue;
    others.push_back(was(key, own->second, old->second));
  }
  if (others.empty()) return;
  user_error(
      "checkpoint.resume: {}: with other states of the optimizer: {}; set it as it was, or "
      "checkpoint.strict to false to begin without those states",
      found.path().string(), fmt::join(others, "; "));
}

void check_same_base(const std::optional<checkpoint::BaseWeights>& base,
                     const checkpoint::Checkpoint& found) {
  const auto before = checkpoint::base_weights_of(found.index().state);
  const auto where = found.path().string();
  if (!base && !before) return;
  if (!before) {
    user_error(
        "checkpoint.resume: {}: of a whole model, not of an adapter; set adapter.type to none",
        where);
  }
  if (!base) {
    user_error("checkpoint.resume: {}: of an adapter alone; set adapter.type and its keys as there",
               where);
  }
  if (base->sample != before->sample) {
    user_error(
        "checkpoint.resume: {}: of an adapter beside other weights than model.path's {}; set it to "
        "those that it was trained beside, {}",
        where, base->path.empty() ? "(drawn from a seed)" : base->path,
        before->path.empty() ? "drawn from a seed" : before->path);
  }
  const auto same = [](const auto& a, const auto& b) { return a.sample == b.sample; };
  if (!std::ranges::equal(base->adapters, before->adapters, same)) {
    std::vector<std::string> folders;
    for (const auto& adapter : before->adapters) folders.push_back(adapter.path);
    user_error(
        "checkpoint.resume: {}: of an adapter upon others than adapter.base's; set it to [{}]",
        where, fmt::join(folders, ", "));
  }
}

std::vector<std::string> differences(const Run& run, const checkpoint::Checkpoint& found) {
  std::vector<std::string> notes;
  const auto& state = found.index().state;
  if (state.is_object()) {
    add_seeds(run, state, notes);
    const auto data = state.find("data");
    if (data != state.end() && *data != data_of(run)) {
      notes.push_back(fmt::format(
          "data.train: {} tokens, {} where the checkpoint was saved: not the same content, so "
          "samples differ and some may come twice",
          data_of(run)["tokens"].dump(), data->value("tokens", json()).dump()));
    }
  }
  const auto before = settings_in(found.index().config);
  for (const auto& [key, value] : settings_in(config::to_yaml(run.config))) {
    const auto old = before.find(key);
    if (!matters(key) || old == before.end() || old->second == value) continue;
    notes.push_back(was(key, value, old->second));
  }
  return notes;
}

}  // namespace tessera::train
