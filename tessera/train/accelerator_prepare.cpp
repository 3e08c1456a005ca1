// What Accelerator::prepare makes of models and optimizers.
#include <ATen/ops/full.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/layers.h"
#include "tessera/train/accelerator_core.h"
#include "tessera/train/engine_options.h"
#include "tessera/train/torch_states.h"

namespace tessera {
namespace {

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

/// Those of `units` that are one module inside of the model. UserError: none.
std::vector<nn::Hookable*> blocks_of(const std::vector<parallel::UnitModules>& units,
                                     const nn::Hookable* root) {
  std::vector<nn::Hookable*> blocks;
  for (const auto& unit : units) {
    if (unit.modules.size() == 1 && unit.modules[0] != root) blocks.push_back(unit.modules[0]);
  }
  if (blocks.empty()) {
    user_error(
        "activation checkpointing: expected units that are one module inside of the model, got "
        "none; set fsdp_auto_wrap_policy (or fsdp_min_num_params) so that its layers are units, "
        "or turn it off");
  }
  return blocks;
}

/// LibTorch's Adagrad makes its sums with the optimizer, not at the first step.
void begin_adagrad(torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    const auto* options = dynamic_cast<const torch::optim::AdagradOptions*>(&group.options());
    if (options == nullptr) continue;
    for (const auto& parameter : group.params()) {
      auto state = std::make_unique<torch::optim::AdagradParamState>();
      state->step(0);
      state->sum(at::full_like(parameter.detach(), options->initial_accumulator_value()));
      optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

}  // namespace

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

bool AcceleratorCore::replicates() const {
  return axis_.size() == 1 || !parallel::is_sharded(config_.parallel.placement);
}

/// backward() begins with 1 unless it averages micro-batches or scales the loss.
void AcceleratorCore::tell_heads(torch::nn::Module& root) const {
  for (const auto& module : root.modules()) {
    if (auto* head = module->as<nn::LanguageModelHeadImpl>())
      head->adds_in_forward = !scaler_ && accumulation_steps_ == 1;
  }
}

void AcceleratorCore::add_model(torch::nn::Module& inner,
                                const std::shared_ptr<nn::Hookable>& root) {
  if (std::ranges::any_of(models_, [&](const auto& model) { return model->inner == &inner; })) {
    return;
  }
  inner.to(mesh_->device());
  auto units = parallel::make_units(*root, unit_rule());
  if (config_.memory.checkpointing != memory::CheckpointMode::none) {
    train::checkpoint_activations(blocks_of(units, root.get()), train::BlockEnd::any, config_,
                                  *mesh_);
  }
  auto options = train::data_parallel_options(config_);
  options.sync_module_states = true;  // as DDP, FSDP and DeepSpeed do
  TORCH_CHECK_VALUE(options.offload.on_drives != parallel::OnDrives::parameters,
                    "prepare: expected parameters in memory; set offload_params to true, or use "
                    "`tessera train`, which keeps them on drives");
  options.offload.on_drives =
      parallel::OnDrives::nothing;  // what is on drives is no LibTorch optimizer's
  if (options_.comm_hook != CommHook::none) {
    TORCH_CHECK_VALUE(!parallel::is_sharded(config_.parallel.placement),
                      "comm_hook: expected gradients that DDP averages, got ", distributed_type());
    options.unit.mixed_precision.reduce_dtype =
        options_.comm_hook == CommHook::fp16 ? torch::kHalf : torch::kBFloat16;
  }
  const auto* inner_size = std::get_if<int>(&options.unit.reshard_after_forward);
  auto model = std::make_shared<ModelRecord>();
  model->inner = &inner;
  model->root = root;
  model->wrapped = static_cast<torch::nn::Module*>(root.get()) != &inner;
  model->parallel = parallel::parallelise(
      *root, std::move(units),
      parallel::DataAxes::of(*mesh_, inner_size == nullptr ? 0 : *inner_size), options);
  for (const auto& parameter : root->parameters()) {
    model_of_[parameter.unsafeGetTensorImpl()] = models_.size();
  }
  tell_heads(*root);
  // All ranks reduce in one order, whichever of the models a rank's loss is of: the last that was prepared (a decoder, a discriminator)
  // first, as backward mostly comes to it. Sharded models are gathered in one order anyway, and their gradients shall not wait.
  if (replicates() && !models_.empty()) models_.back()->parallel.reduce_after(model->parallel);
  models_.push_back(std::move(model));
}

std::shared_ptr<ModelRecord> AcceleratorCore::model_of(const torch::nn::Module& inner) const {
  return *std::ranges::find(models_, &inner, [](const auto& model) { return model->inner; });
}

std::shared_ptr<OptimizerRecord> AcceleratorCore::add_optimizer(
    torch::optim::Optimizer& optimizer) {
  for (const auto& record : optimizers_) {
    if (record->base == &optimizer) return record;
  }
  const bool adagrad = dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr;
  TORCH_CHECK_VALUE(optimizer.state().empty() || adagrad,
                    "prepare: expected an optimizer before its first step, got one with a state");
  TORCH_CHECK_VALUE(replicates() || dynamic_cast<torch::optim::LBFGS*>(&optimizer) == nullptr,
                    "prepare: expected an optimizer that treats elements alike, got LBFGS, which "
                    "needs the whole gradient; use DDP or one process");
  TORCH_CHECK_VALUE(replicates() || train::knows_states(optimizer),
                    "prepare: expected Adam, AdamW, SGD, RMSprop or Adagrad, whose state can be "
                    "saved in parts, got another optimizer; use DDP or one process");
  TORCH_CHECK_VALUE(config_.parallel.offload_optimizer != parallel::OffloadOptimizer::nvme,
                    "prepare: expected states that LibTorch's optimizers keep in memory; set "
                    "offload_optimizer to true, or use `tessera train`, whose optimizers keep them "
                    "on drives");
  auto record = std::make_shared<OptimizerRecord>();
  record->base = &optimizer;
  auto& groups = optimizer.param_groups();
  std::unordered_map<const void*, size_t> group_of;  // by parameter
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& parameter : groups[i].params()) {
      const auto* key = parameter.unsafeGetTensorImpl();
      const auto model = model_of_.find(key);
      TORCH_CHECK_VALUE(model != model_of_.end(),
                        "prepare: the optimizer has a parameter of no prepared model; pass the "
                        "model to prepare() with it");
      TORCH_CHECK_VALUE(!has_optimizer_.contains(key),
                        "prepare: expected one optimizer for each parameter, got two for one");
      group_of[key] = i;
      if (std::ranges::count(record->models, model->second) == 0) {
        record->models.push_back(model->second);
      }
    }
    groups[i].params().clear();
  }
  for (const auto index : record->models) {
    auto& model = *models_[index];
    model.optimizers.push_back(record.get());
    const auto whole = model.root->named_parameters();
    for (const auto& part : model.parallel.named_parameters()) {
      // What no group has is not updated.
      const auto* key = whole[part.key()].unsafeGetTensorImpl();
      const auto group = group_of.find(key);
      if (group == group_of.end()) continue;
      groups[group->second].params().push_back(part.value());
      has_optimizer_.insert(key);
    }
  }
  optimizer.state().clear();
  begin_adagrad(optimizer);
  optimizers_.push_back(record);
  return record;
}

/// Parameters that were added since (add_param_group): this rank's parts take their place.
void AcceleratorCore::adopt_parameters(OptimizerRecord& optimizer) {
  const auto is_whole = [&](const torch::Tensor& parameter) {
    return model_of_.contains(parameter.unsafeGetTensorImpl());
  };
  for (auto& group : optimizer.base->param_groups()) {
    auto& parameters = group.params();
    if (std::ranges::none_of(parameters, is_whole)) continue;
    std::vector<torch::Tensor> own;
    for (const auto& parameter : parameters) {
      if (!is_whole(parameter)) {
        own.push_back(parameter);
        continue;
      }
      const auto* key = parameter.unsafeGetTensorImpl();
      TORCH_CHECK_VALUE(has_optimizer_.insert(key).second,
                        "step: expected one optimizer for each parameter, got two for one");
      const auto index = model_of_.at(key);
      auto& model = *models_[index];
      if (std::ranges::count(optimizer.models, index) == 0) {
        optimizer.models.push_back(index);
        model.optimizers.push_back(&optimizer);
      }
      const auto whole = model.root->named_parameters();
      for (const auto& part : model.parallel.named_parameters()) {
        if (whole[part.key()].is_same(parameter)) own.push_back(part.value());
      }
    }
    parameters = std::move(own);
  }
}

std::shared_ptr<LoaderRecord> AcceleratorCore::add_loader() {
  return loaders_.emplace_back(std::make_shared<LoaderRecord>());
}

void AcceleratorCore::free_memory() {
  schedulers_.clear();
  optimizers_.clear();
  models_.clear();
  loaders_.clear();
  model_of_.clear();
  has_optimizer_.clear();
  micro_batch_ = 0;
}

}  // namespace tessera
