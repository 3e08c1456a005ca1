// Saves and loads what an Accelerator prepared.
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/train/accelerator_core.h"
#include "tessera/train/save_state.h"

namespace tessera {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

/// The place of this rank's CPU generator, as text.
std::string generator_state() {
  const auto state = at::detail::getDefaultCPUGenerator().get_state();
  const auto* bytes = state.const_data_ptr<uint8_t>();
  std::string text;
  for (int64_t i = 0; i < state.numel(); ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

void set_generator_state(const std::string& text) {
  auto state = torch::empty({std::ssize(text) / 2}, torch::kUInt8);
  auto* bytes = state.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; 2 * i + 1 < text.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(state);
}

}  // namespace

train::SavedModel AcceleratorCore::saved(size_t index) const {
  const auto& model = models_[index];
  return {.model = &model.parallel,
          .optimizer = model.optimizer == nullptr ? nullptr : model.optimizer->base,
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

std::vector<checkpoint::Part> AcceleratorCore::held_state(bool all_states, bool buffers) const {
  std::vector<checkpoint::Part> held;
  for (size_t i = 0; i < models_.size(); ++i) {
    std::ranges::move(train::held_parts(saved(i), all_states, buffers), std::back_inserter(held));
  }
  return held;
}

json AcceleratorCore::counts() const {
  json optimizers = json::array(), schedulers = json::array();
  for (const auto& record : optimizers_) {
    optimizers.push_back(train::counts_of(*record->base, saved(*record), axis_));
  }
  for (const auto& scheduler : schedulers_) schedulers.push_back(scheduler.count());
  json state{{"step", num_steps_},
             {"micro_batches", num_micro_batches_},
             {"optimizers", optimizers},
             {"schedulers", schedulers},
             {"generators", axis_.all_gather_bytes(generator_state())}};
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
  const auto& optimizers = state.at("optimizers");
  for (size_t i = 0; i < std::min(optimizers_.size(), optimizers.size()); ++i) {
    train::set_counts(*optimizers_[i]->base, saved(*optimizers_[i]), optimizers[i]);
  }
  const auto& schedulers = state.at("schedulers");
  for (size_t i = 0; i < std::min(schedulers_.size(), schedulers.size()); ++i) {
    schedulers_[i].set_count(schedulers[i]);
  }
  // With as many processes as saved, each goes on drawing where it was.
  const auto& generators = state.at("generators");
  if (std::ssize(generators) == axis_.size()) {
    set_generator_state(generators.at(static_cast<size_t>(axis_.rank())));
  }
  if (scaler_ && state.contains("loss_scaler")) {
    const auto& scaler = state["loss_scaler"];
    scaler_->load({.scale = scaler.at("scale"),
                   .growth_tracker = scaler.at("growth_tracker"),
                   .skipped_steps = scaler.at("skipped_steps")});
  }
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
  checkpoint::agree(axis_, [&] {
    const checkpoint::Checkpoint found(train::newest_checkpoint(directory));
    const auto& state = found.index().state;
    train::load_all(found, held_state(/*all_states=*/found.index().step > 0, /*buffers=*/true),
                    optimizers);
    for (auto& model : models_) model.parallel.values_changed();
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
