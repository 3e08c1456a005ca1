// Saves and loads what an Accelerator prepared.
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/run_on_all.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/train/accelerator_core.h"
#include "tessera/train/save_state.h"
#include "tessera/train/torch_states.h"

namespace tessera {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

std::string as_text(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::string from_text(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

/// The state of a generator as text, and back.
std::string as_text(const torch::Tensor& state) {
  const auto bytes = state.contiguous();
  return as_text(std::string_view(static_cast<const char*>(bytes.const_data_ptr()),
                                  static_cast<size_t>(bytes.numel())));
}

torch::Tensor generator_from(const std::string& text) {
  const auto bytes = from_text(text);
  auto state = torch::empty({std::ssize(bytes)}, torch::kUInt8);
  std::ranges::copy(bytes, static_cast<char*>(state.mutable_data_ptr()));
  return state;
}

constexpr const char* kMetrics = "metrics";

/// The bits of each, as JSON has no infinity; null: none.
json bits_of(const Metrics& metrics) {
  auto bits = json::array();
  for (const auto& metric : metrics) {
    bits.push_back(metric ? json(fmt::format("{:016x}", std::bit_cast<uint64_t>(*metric)))
                          : json());
  }
  return bits;
}

void check_goes_on(bool begins_alike) {
  if (begins_alike) return;
  user_error(
      "load_state: expected a scheduler that took no other steps than the saved one; make it anew, "
      "or give it state_dict() and load_state_dict()");
}

/// LibTorch's LBFGS cannot write itself while one of its scratch numbers is undefined.
void define_scratch(torch::optim::Optimizer& optimizer) {
  for (auto& [parameter, each] : optimizer.state()) {
    auto* state = dynamic_cast<torch::optim::LBFGSParamState*>(each.get());
    if (state == nullptr || !state->al()) continue;
    for (auto& number : *state->al()) {
      if (!number.defined()) number = torch::zeros({1});
    }
  }
}

/// All that an optimizer of another kind writes of itself (LBFGS, the user's own).
std::string archived(torch::optim::Optimizer& optimizer) {
  define_scratch(optimizer);
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream bytes;
  archive.save_to(bytes);
  return as_text(bytes.str());
}

void restore(torch::optim::Optimizer& optimizer, const std::string& text) {
  std::istringstream bytes(from_text(text));
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  optimizer.load(archive);
}

}  // namespace

train::SavedModel AcceleratorCore::saved(size_t index) const {
  const auto& model = *models_[index];
  std::vector<torch::optim::Optimizer*> optimizers;
  for (const auto* record : model.optimizers) optimizers.push_back(record->base);
  return {.model = &model.parallel,
          .optimizers = std::move(optimizers),
          .named = [wrapped = model.wrapped, index](std::string name) {
            if (wrapped) name.erase(0, std::string_view("module.").size());
            return index == 0 ? name : fmt::format("model_{}.{}", index, name);
          }};
}

std::vector<train::SavedModel> AcceleratorCore::saved(const OptimizerRecord& optimizer) const {
  std::vector<train::SavedModel> models;
  for (const auto index : optimizer.models) models.push_back(saved(index));
  return models;
}

int64_t steps_behind(int64_t taken, const json& state) {
  const auto steps = state.get<int64_t>();
  check_goes_on(taken <= steps);
  return steps - taken;
}

Metrics metrics_behind(const Metrics& taken, const json& state) {
  const auto before = bits_of(taken);
  const auto& all = state.at(kMetrics);
  const auto [own, other] = std::ranges::mismatch(before, all);
  check_goes_on(own == before.end());
  Metrics more;
  for (auto bits = other; bits != all.end(); ++bits) {
    more.emplace_back();
    if (bits->is_string()) {
      more.back() =
          std::bit_cast<double>(uint64_t{std::stoull(bits->get<std::string>(), nullptr, 16)});
    }
  }
  return more;
}

json state_of(const Metrics& metrics) { return {{kMetrics, bits_of(metrics)}}; }

std::vector<checkpoint::HeldExtent> AcceleratorCore::held_state(bool all_states,
                                                                bool buffers) const {
  std::vector<checkpoint::HeldExtent> held;
  for (size_t i = 0; i < models_.size(); ++i) {
    std::ranges::move(train::held_parts(saved(i), all_states, buffers), std::back_inserter(held));
  }
  return held;
}

json AcceleratorCore::loaders_state() const {
  json loaders = json::array();
  for (const auto& record : loaders_) {
    const auto pass = record->pass.lock();
    const bool inside = pass && !pass->at_end;
    loaders.push_back(
        inside ? json{{"position", pass->position}, {"generator", as_text(pass->generator)}}
               : json());
  }
  return loaders;
}

void AcceleratorCore::load_loaders(const json& state) {
  const auto& loaders = state.at("loaders");
  const int64_t ranks = std::ssize(state.at("generators"));
  for (size_t i = 0; i < loaders_.size(); ++i) {
    loaders_[i]->resumed.reset();
    if (i >= loaders.size() || loaders[i].is_null()) continue;
    // Where more ranks take turns each has fewer batches behind it.
    const int64_t position = loaders[i].at("position");
    loaders_[i]->resumed = LoaderRecord::Resumed{
        .generator = generator_from(loaders[i].at("generator")),
        .position = options_.split_batches ? position : position * ranks / axis_.size()};
  }
}

json AcceleratorCore::counts() const {
  json optimizers = json::array(), schedulers = json::array(), objects = json::array();
  for (const auto& record : optimizers_) {
    auto counts = train::counts_of(*record->base, saved(*record), axis_);
    if (!train::knows_states(*record->base)) counts["archive"] = archived(*record->base);
    optimizers.push_back(std::move(counts));
  }
  for (const auto& scheduler : schedulers_) schedulers.push_back(scheduler.state());
  for (const auto& object : objects_) objects.push_back(object.state());
  json state{{"step", num_steps_},
             {"micro_batches", num_micro_batches_},
             {"micro_batch", micro_batch_},
             {"optimizers", optimizers},
             {"schedulers", schedulers},
             {"objects", objects},
             {"loaders", loaders_state()},
             {"generators",
              axis_.all_gather_bytes(as_text(at::detail::getDefaultCPUGenerator().get_state()))}};
  if (scaler_) {
    state["loss_scaler"] = {{"scale", scaler_->state().scale},
                            {"growth_tracker", scaler_->state().growth_tracker},
                            {"skipped_steps", scaler_->state().skipped_steps}};
  }
  return state;
}

void AcceleratorCore::set_counts(const json& state) {
  num_steps_ = state.at("step");
  num_micro_batches_ = state.at("micro_batches");
  micro_batch_ = state.value("micro_batch", int64_t{0});
  const auto load = [](auto& records, const json& states, std::string_view what) {
    if (records.size() != states.size()) {
      user_error("load_state: expected {} {}, as the run that saved had, got {}", states.size(),
                 what, records.size());
    }
    for (size_t i = 0; i < records.size(); ++i) records[i].load(states[i]);
  };
  load(schedulers_, state.at("schedulers"), "prepared schedulers");
  const auto& optimizers =
      state.at("optimizers");  // after the schedulers: learning rates are theirs
  for (size_t i = 0; i < std::min(optimizers_.size(), optimizers.size()); ++i) {
    auto& optimizer = *optimizers_[i]->base;
    if (optimizers[i].contains("archive")) restore(optimizer, optimizers[i]["archive"]);
    train::set_counts(optimizer, saved(*optimizers_[i]), optimizers[i]);
  }
  load(objects_, state.value("objects", json::array()), "objects registered for checkpointing");
  if (state.contains("loaders")) load_loaders(state);
  // With as many processes as saved, each goes on drawing where it was.
  const auto& generators = state.at("generators");
  if (std::ssize(generators) == axis_.size()) {
    auto generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(generator_from(generators.at(static_cast<size_t>(axis_.rank()))));
  }
  if (scaler_ && state.contains("loss_scaler")) {
    const auto& scaler = state["loss_scaler"];
    scaler_->load({.scale = scaler.at("scale"),
                   .growth_tracker = scaler.at("growth_tracker"),
                   .skipped_steps = scaler.at("skipped_steps")});
  }
}

/// The numbered folders of checkpoints that name themselves, oldest first.
std::vector<std::pair<int64_t, fs::path>> AcceleratorCore::named_checkpoints() const {
  std::vector<std::pair<int64_t, fs::path>> found;
  const auto folder = options_.project_dir / "checkpoints";
  if (!fs::exists(folder)) return found;
  constexpr std::string_view kPrefix = "checkpoint_";
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    const auto digits = name.substr(std::min(kPrefix.size(), name.size()));
    if (!name.starts_with(kPrefix) || digits.empty() ||
        digits.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    found.emplace_back(std::stoll(digits), entry.path());
  }
  std::ranges::sort(found);
  return found;
}

void AcceleratorCore::save_state() {
  TORCH_CHECK_VALUE(
      options_.automatic_checkpoint_naming,
      "save_state: expected a folder, or automatic_checkpoint_naming and project_dir");
  fs::path folder;
  checkpoint::run_on_all(axis_, [&] {
    const auto found = named_checkpoints();
    const auto next = found.empty() ? 0 : found.back().first + 1;
    folder = options_.project_dir / "checkpoints" / fmt::format("checkpoint_{}", next);
    return folder.string();
  });
  save_state(folder);
  if (!options_.total_limit || axis_.rank() != 0) return;
  const auto found = named_checkpoints();
  for (int64_t i = 0; i < std::ssize(found) - *options_.total_limit; ++i) {
    fs::remove_all(found[static_cast<size_t>(i)].second);
  }
}

void AcceleratorCore::load_state() {
  const auto found = named_checkpoints();
  if (found.empty()) {
    user_error("load_state: expected a checkpoint in '{}', got none",
               (options_.project_dir / "checkpoints").string());
  }
  load_state(found.back().second);
}

void AcceleratorCore::save_state(const fs::path& directory) {
  const auto& axis = mesh_->axis({"dp_replicate", "dp_shard"}, {.channel = mesh::kSaveChannel});
  checkpoint::Saver saver(axis,
                          held_state(/*all_states=*/num_steps_ > 0, /*buffers=*/axis.rank() == 0),
                          {.directory = directory,
                           .async = false,
                           .layout = {{"num_ranks", axis_.size()},
                                      {"placement", text_of(config_.parallel.placement)},
                                      {"units", text_of(config_.parallel.units)}},
                           .model = json::object(),
                           .config = config::to_yaml(config_)});
  saver.save({.step = num_steps_, .state = counts()});
  saver.finish();
  for (const auto& report : saver.take_reports()) {
    if (!report.error.empty()) throw SystemError(report.error);
  }
}

void AcceleratorCore::load_state(const fs::path& directory) {
  std::vector<const torch::optim::Optimizer*> optimizers;
  for (const auto& record : optimizers_) optimizers.push_back(record->base);
  checkpoint::run_on_all(axis_, [&] {
    const checkpoint::Checkpoint found(train::newest_checkpoint(directory));
    const auto& state = found.index().state;
    if (found.index().step == 0) {  // before any update no optimizer had a state
      for (const auto& record : optimizers_) record->base->state().clear();
    }
    train::load_all(found, held_state(/*all_states=*/found.index().step > 0, /*buffers=*/true),
                    optimizers);
    for (auto& model : models_) model->parallel.values_changed();
    try {
      set_counts(state);
    } catch (const json::exception& error) {
      user_error("{}: expected a checkpoint of Accelerator::save_state: {}", found.path().string(),
                 error.what());
    }
    return "";
  });
}

}  // namespace tessera
