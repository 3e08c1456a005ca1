#include "tessera/train/accelerator_core.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/config/accelerate/ledger.h"
#include "tessera/train/engine_options.h"

namespace tessera {
namespace {

namespace accelerate = config::accelerate;
using nlohmann::json;

launch::RankEnvironment ranks() {
  return launch::rank_environment().value_or(launch::RankEnvironment{});
}

/// What follows from the ranks that are there, and what the program itself says.
void complete(accelerate::Settings& settings, const AcceleratorOptions& options,
              const launch::RankEnvironment& environment) {
  const int world_size = environment.world_size;
  const auto set = [&](const char* key, std::string value) {
    settings.set({.key = key, .value = std::move(value), .origin = "the ranks' environment"});
  };
  if (settings.find("distributed_type") == nullptr) {
    set("distributed_type", world_size > 1 ? "MULTI_CPU" : "NO");
  }
  set("num_processes", std::to_string(world_size));
  const int machines = std::max(1, world_size / environment.local_world_size);
  set("num_machines", std::to_string(machines));
  if (machines > 1) set("main_process_ip", environment.master_addr);
  if (options.mixed_precision) {
    settings.set({.key = "mixed_precision",
                  .value = *options.mixed_precision,
                  .origin = "AcceleratorOptions"});
  }
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : list + ",") {
    if (c != ',') {
      if (c != ' ' && c != '[' && c != ']') word += c;
      continue;
    }
    if (!word.empty()) words.push_back(std::exchange(word, {}));
  }
  return words;
}

}  // namespace

AcceleratorCore::AcceleratorCore(const AcceleratorOptions& options, accelerate::Settings settings,
                                 std::shared_ptr<const mesh::DeviceMesh> mesh)
    : options_(options), settings_(std::move(settings)), environment_(ranks()) {
  if (mesh) environment_.world_size = environment_.local_world_size = mesh->size();
  complete(settings_, options, environment_);
  const auto translation = accelerate::translate(settings_);
  accelerate::check_ledger(translation.ledger, /*strict=*/false);
  config_ = config::load_run_config("", translation.job).config;
  note_step_settings(translation);
  if (config_.parallel.tp != 1) {
    user_error(
        "parallel.tp: the Accelerator divides no matrices, got {}; use tessera train, or "
        "tensor_parallel() of your model",
        config_.parallel.tp);
  }
  if (!mesh) {
    train::set_threads(config_.parallel, environment_);
    mesh = std::make_shared<mesh::DeviceMesh>(train::make_mesh(config_.parallel, environment_));
  }
  mesh_ = std::move(mesh);
  axis_ = mesh_->axis({"dp_replicate", "dp_shard"});
  if (config_.precision.autocast) autocast_ = train::torch_dtype(config_.precision.compute);
  if (config_.precision.compute == FloatType::fp16) scaler_.emplace();
}

void AcceleratorCore::note_step_settings(const accelerate::Translation& translation) {
  for (const auto& entry : translation.job) {
    if (entry.key == "optimizer.max_grad_norm") clip_always_ = config_.optimizer.max_grad_norm;
  }
  if (translation.accumulation && translation.accumulation->value != "auto") {
    accumulation_steps_ = std::stoll(translation.accumulation->value);
  }
  accumulation_steps_ = options_.gradient_accumulation_steps.value_or(accumulation_steps_);
  TORCH_CHECK_VALUE(accumulation_steps_ > 0,
                    "gradient_accumulation_steps: expected at least 1, got ", accumulation_steps_);
}

// ---- preparing ---------------------------------------------------------------------------------

parallel::UnitRule AcceleratorCore::unit_rule() const {
  const auto& section = config_.parallel;
  auto classes = split(settings_.text("fsdp_config.fsdp_transformer_layer_cls_to_wrap"));
  if (section.units == parallel::Units::model) return {.kind = parallel::UnitRuleKind::whole_model};
  if (section.units == parallel::Units::block && !classes.empty()) {
    return {.kind = parallel::UnitRuleKind::by_class, .classes = std::move(classes)};
  }
  return {.kind = parallel::UnitRuleKind::by_size,
          .min_num_params = section.units == parallel::Units::size
                                ? section.min_num_params
                                : parallel::UnitRule{}.min_num_params};
}

void AcceleratorCore::add_model(torch::nn::Module& inner,
                                const std::shared_ptr<nn::Hookable>& root) {
  if (std::ranges::any_of(models_, [&](const auto& model) { return model.inner == &inner; })) {
    return;
  }
  inner.to(mesh_->device());
  const bool wrapped = static_cast<torch::nn::Module*>(root.get()) != &inner;
  auto units = parallel::make_units(*root, unit_rule());
  if (config_.memory.checkpointing != memory::CheckpointMode::none) {
    std::vector<nn::Hookable*> blocks;
    for (const auto& unit : units) {
      if (unit.modules.size() == 1 && unit.modules[0] != root.get()) {
        blocks.push_back(unit.modules[0]);
      }
    }
    if (blocks.empty()) {
      user_error(
          "activation checkpointing: expected units that are one module inside of the model, got "
          "none; set fsdp_auto_wrap_policy (or fsdp_min_num_params) so that its layers are units, "
          "or turn it off");
    }
    train::checkpoint_activations(blocks, train::BlockEnd::any, config_.memory);
  }
  auto options = train::data_parallel_options(config_);
  options.sync_module_states = true;  // as DDP, FSDP and DeepSpeed do
  const auto* inner_size = std::get_if<int>(&options.unit.reshard_after_forward);
  models_.push_back(
      {.inner = &inner,
       .root = root,
       .wrapped = wrapped,
       .parallel = parallel::parallelise(
           *root, std::move(units),
           parallel::DataAxes::of(*mesh_, inner_size == nullptr ? 0 : *inner_size), options)});
  for (const auto& parameter : root->parameters()) {
    model_of_[parameter.unsafeGetTensorImpl()] = models_.size() - 1;
  }
}

const std::shared_ptr<nn::Hookable>& AcceleratorCore::root_of(
    const torch::nn::Module& inner) const {
  return std::ranges::find(models_, &inner, &Model::inner)->root;
}

OptimizerRecord& AcceleratorCore::add_optimizer(torch::optim::Optimizer& optimizer) {
  for (const auto& record : optimizers_) {
    if (record->base == &optimizer) return *record;
  }
  auto record = std::make_unique<OptimizerRecord>();
  record->base = &optimizer;
  auto& groups = optimizer.param_groups();
  std::unordered_map<const void*, size_t> group_of;  // by parameter
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& parameter : groups[i].params()) {
      const auto model = model_of_.find(parameter.unsafeGetTensorImpl());
      TORCH_CHECK_VALUE(model != model_of_.end(),
                        "prepare: the optimizer has a parameter of no prepared model; pass the "
                        "model to prepare() with it");
      group_of[parameter.unsafeGetTensorImpl()] = i;
      if (std::ranges::count(record->models, model->second) == 0) {
        record->models.push_back(model->second);
      }
    }
    groups[i].params().clear();
  }
  for (const auto index : record->models) {
    auto& model = models_[index];
    TORCH_CHECK_VALUE(model.optimizer == nullptr,
                      "prepare: expected one optimizer for each model, got two for one");
    model.optimizer = record.get();
    const auto whole = model.root->named_parameters();
    for (const auto& part : model.parallel.named_parameters()) {
      // What no group has is not updated.
      const auto group = group_of.find(whole[part.key()].unsafeGetTensorImpl());
      if (group != group_of.end()) groups[group->second].params().push_back(part.value());
    }
  }
  optimizer.state().clear();
  optimizers_.push_back(std::move(record));
  return *optimizers_.back();
}

// ---- a step ------------------------------------------------------------------------------------

std::shared_ptr<LoaderPass> AcceleratorCore::begin_pass() {
  auto pass = std::make_shared<LoaderPass>();
  passes_.push_back(pass);
  return pass;
}

std::shared_ptr<LoaderPass> AcceleratorCore::pass() {
  while (!passes_.empty() && passes_.back().expired()) passes_.pop_back();
  return passes_.empty() ? nullptr : passes_.back().lock();
}

void AcceleratorCore::begin_micro_batch() {
  const auto in_pass = pass();
  if (options_.sync_with_loader && in_pass && in_pass->at_end) {
    micro_batch_ = 0;
    sync_gradients_ = true;
    return;
  }
  ++micro_batch_;
  sync_gradients_ = micro_batch_ % accumulation_steps_ == 0;
}

void AcceleratorCore::backward(const torch::Tensor& loss) {
  TORCH_CHECK_VALUE(!models_.empty(), "backward: expected a model from prepare(), got none");
  const bool reduces = sync_gradients_ || parallel::frees_gradients(config_.parallel.placement);
  for (auto& model : models_) {
    model.parallel.set_requires_gradient_sync(reduces);
    model.parallel.set_is_last_backward(sync_gradients_);
    model.has_gradients = true;
  }
  const double scale = scaler_ ? scaler_->scale() : 1;
  const double factor = scale / static_cast<double>(accumulation_steps_);
  (factor == 1 ? loss : loss * factor).backward();
  for (auto& model : models_) model.parallel.finish_backward();
  ++num_micro_batches_;
}

double AcceleratorCore::gradient_norm() const {
  double squares = 0;
  for (const auto& model : models_) {
    const auto found = model.parallel.gradient_norm();
    if (!found.nonfinite_unit.empty()) return std::numeric_limits<double>::infinity();
    squares += found.norm * found.norm;
  }
  return std::sqrt(squares);
}

void AcceleratorCore::scale_gradients(const OptimizerRecord& optimizer, double factor) {
  for (const auto index : optimizer.models) models_[index].parallel.scale_gradients(factor);
}

void AcceleratorCore::unscale(OptimizerRecord& optimizer) {
  if (!scaler_ || optimizer.unscaled) return;
  scale_gradients(optimizer, 1 / scaler_->scale());
  optimizer.unscaled = true;
}

double AcceleratorCore::clip_grad_norm(double max_norm) {
  TORCH_CHECK_VALUE(max_norm > 0, "clip_grad_norm: expected a norm above 0, got ", max_norm);
  if (!sync_gradients_) return 0;
  for (auto& optimizer : optimizers_) unscale(*optimizer);
  const double norm = gradient_norm();
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1) {
    for (const auto& optimizer : optimizers_) scale_gradients(*optimizer, factor);
  }
  return norm;
}

void AcceleratorCore::step(OptimizerRecord& optimizer) {
  optimizer.skipped = false;
  if (!sync_gradients_) return;
  if (clip_always_ > 0) clip_grad_norm(clip_always_);
  if (scaler_) {
    unscale(optimizer);
    optimizer.skipped = !std::isfinite(gradient_norm());
    scaler_->update(optimizer.skipped);
    optimizer.unscaled = false;
  }
  if (!optimizer.skipped) optimizer.base->step();
  finish_step(optimizer);
  ++num_steps_;
}

void AcceleratorCore::finish_step(const OptimizerRecord& optimizer) {
  for (const auto index : optimizer.models) {
    if (std::exchange(models_[index].has_gradients, false)) models_[index].parallel.finish_step();
  }
}

void AcceleratorCore::zero_grad(OptimizerRecord& optimizer) {
  if (sync_gradients_) finish_step(optimizer);
}

bool AcceleratorCore::any_skipped() const {
  return std::ranges::any_of(optimizers_, [](const auto& record) { return record->skipped; });
}

std::unique_ptr<precision::Autocast> AcceleratorCore::autocast() const {
  if (!autocast_) return nullptr;
  return std::make_unique<precision::Autocast>(*autocast_, mesh_->device().type());
}

torch::Tensor AcceleratorCore::cast_input(const torch::Tensor& input) const {
  const auto& precision = config_.precision;
  const bool cast = precision.computes_in_half();
  if (!cast || !input.defined() || !input.is_floating_point()) return input;
  return input.to(train::torch_dtype(precision.compute));
}

// ---- exchange ----------------------------------------------------------------------------------

void AcceleratorCore::in_step_with_rank_0(const std::function<void()>& work) const {
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto state = [&] {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  };
  const auto set_state = [&](const torch::Tensor& value) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(value);
  };
  const auto own = state();
  const auto common = own.clone();
  axis_.broadcast(common, 0).wait();
  set_state(common);
  work();
  if (axis_.rank() != 0) set_state(own);
}

void AcceleratorCore::broadcast(std::vector<torch::Tensor*> tensors) const {
  json shapes = json::array();
  if (axis_.rank() == 0) {
    for (const auto* tensor : tensors) {
      shapes.push_back(
          {{"dtype", static_cast<int>(tensor->scalar_type())}, {"sizes", tensor->sizes().vec()}});
    }
  }
  shapes = json::parse(axis_.all_gather_bytes(shapes.dump())[0]);
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& tensor = *tensors[i];
    if (axis_.rank() == 0) {
      tensor = tensor.contiguous();
    } else {
      tensor = at::empty(shapes[i]["sizes"].get<std::vector<int64_t>>(),
                         static_cast<torch::Dtype>(shapes[i]["dtype"].get<int>()));
    }
    axis_.broadcast(tensor, 0).wait();
  }
}

torch::Tensor AcceleratorCore::gather(const torch::Tensor& tensor) const {
  auto own = (tensor.dim() == 0 ? tensor.reshape({1}) : tensor).detach().contiguous();
  std::vector<torch::Tensor> parts;
  const auto texts = axis_.all_gather_bytes(json(own.sizes().vec()).dump());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto sizes = json::parse(texts[rank]).get<std::vector<int64_t>>();
    TORCH_CHECK_VALUE(at::IntArrayRef(sizes).slice(1) == own.sizes().slice(1),
                      "gather: expected tensors that differ in their first dimension at most, got ",
                      texts[rank], " on rank ", rank, " and ", own.sizes(), " on rank ",
                      axis_.rank(), "; pad_across_processes makes them equal");
    parts.push_back(at::empty(sizes, own.options()));
  }
  axis_.all_gather_uneven(parts, own).wait();
  return at::cat(parts);
}

std::pair<int64_t, int64_t> AcceleratorCore::share_of(int64_t count) const {
  const auto each = count / axis_.size(), more = count % axis_.size(), rank = int64_t{axis_.rank()};
  const auto begin = rank * each + std::min(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

}  // namespace tessera
