#include "tessera/train/assemble.h"

#include <ATen/Parallel.h>
#include <c10/util/accumulate.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/models/adapt.h"
#include "tessera/parallel/expert/share.h"
#include "tessera/parallel/pipeline/stages.h"
#include "tessera/train/engine_options.h"
#include "tessera/train/first_weights.h"
#include "tessera/train/job_adapter.h"
#include "tessera/train/join_run.h"
#include "tessera/train/layer_costs.h"
#include "tessera/train/muon.h"
#include "tessera/train/open_data.h"

namespace tessera::train {
namespace {

/// Makes the model on the meta device: each rank later fills its slices only. But where rank 0's
/// values count, it holds them whole.
std::shared_ptr<models::LanguageModel> make_model(const config::RunConfig& config,
                                                  const models::ModelShape& shape, int rank,
                                                  torch::Device device) {
  const auto options = torch::dtype(torch_dtype(config.precision.parameters));
  const bool whole = config.parallel.sync_module_states && rank == 0;
  auto model = models::make_language_model(
      shape, options.device(whole ? device : torch::Device(torch::kMeta)));
  if (whole) checkpoint::load_pretrained(*model, config.model.path);
  return model;
}

/// The units of the model, whole or (`is_stage`) what a rank of a pipeline has of it; `parts`: what
/// it has of single parameters.
std::vector<parallel::UnitModules> make_units(models::LanguageModel& model,
                                              const config::ParallelSection& section, bool is_stage,
                                              const parallel::TensorParts& parts) {
  std::map<const void*, int64_t> whole;
  for (const auto& item : model.named_parameters()) {
    const auto part = parts.find(item.key());
    whole[item.value().unsafeGetTensorImpl()] =
        part == parts.end() ? item.value().numel() : c10::multiply_integers(part->second.shape);
  }
  const auto num_elements = [&](const torch::Tensor& parameter) {
    return whole.at(parameter.unsafeGetTensorImpl());
  };
  return parallel::make_units(model, {.kind = unit_rule_kind(section.units),
                                      .patterns = section.unit_patterns,
                                      .min_num_params = section.min_num_params,
                                      .num_elements = num_elements,
                                      .is_stage = is_stage,
                                      .modules = model.blocks()});
}

std::vector<Parameter> parameters_of(const models::LanguageModel& model,
                                     const config::RunConfig& config) {
  const auto [tables, layers, head] = model.layout();
  std::vector<Parameter> parameters;
  for (const auto& item : model.named_parameters()) {
    const auto& [name, parameter] = item.pair();
    const bool in_layer = std::ranges::any_of(
        layers, [&name = name](const auto& layer) { return name.starts_with(layer + "."); });
    const bool in_table = std::ranges::any_of(
        tables, [&name = name](const auto& table) { return name == table + ".weight"; });
    auto& added = parameters.emplace_back(Parameter{
        .name = name, .shape = parameter.sizes().vec(), .trained = parameter.requires_grad()});
    if (!added.trained) continue;
    added.treatment = optim::treatment_of(config.optimizer.type, config.precision.optimizer_states,
                                          {.matrix_of_block = in_layer && parameter.dim() == 2,
                                           .of_embedding = in_table,
                                           .num_elements = parameter.numel()});
  }
  return parameters;
}

/// UserError: tensor parallelism cuts a parameter inside of a block of numbers that share a scale.
void check_blocks(const std::vector<Parameter>& parameters, const parallel::TensorParts& parts) {
  for (const auto& parameter : parameters) {
    const auto part = parts.find(parameter.name);
    if (parameter.treatment != optim::Treatment::blocks || part == parts.end()) continue;
    const auto& [shape, stripe] = std::tie(part->second.shape, part->second.stripe);
    if (stripe.of_blocks(optim::kStateBlock, c10::multiply_integers(shape))) continue;
    user_error(
        "parallel.tp: cuts {1} [{2}] inside of a block of {0} numbers whose states share a scale; "
        "set fewer ranks of tp, or states of 32 bits: optimizer.type adamw with "
        "precision.optimizer_states fp32, and no preset that sets another",
        optim::kStateBlock, parameter.name, fmt::join(shape, ", "));
  }
}

/// The modules of each stage.
parallel::StageModules stage_modules(const models::LanguageModel& model,
                                     const plan::PipelinePlan& plan) {
  const auto [embedding, layers, head] = model.layout();
  parallel::StageModules modules(plan.stage_layers.size());
  modules.front() = embedding;
  for (size_t stage = 0; stage < modules.size(); ++stage) {
    const auto [begin, end] = plan.layers_of(static_cast<int>(stage));
    modules[stage].insert(modules[stage].end(), layers.begin() + begin, layers.begin() + end);
  }
  modules.back().insert(modules.back().end(), head.begin(), head.end());
  return modules;
}

using StageReplication = std::map<std::string, parallel::Replication>;

parallel::Replication replication_of(const std::string& name,
                                     const parallel::TensorParts& tensor_parts,
                                     const StageReplication& stage_replication) {
  const auto divided = tensor_parts.find(name);
  const auto over_stages = stage_replication.find(name);
  if (over_stages == stage_replication.end()) {
    return divided == tensor_parts.end() ? parallel::Replication() : divided->second.replication;
  }
  // What is tied is a table of the vocabulary, which tensor parallelism divides.
  TORCH_INTERNAL_ASSERT(divided == tensor_parts.end() ||
                        divided->second.replication.ranks.size() == 1);
  return over_stages->second;
}

parallel::DataParallel make_data_parallel(
    models::LanguageModel& model, const config::RunConfig& config, const mesh::DeviceMesh& mesh,
    const std::vector<Parameter>& parameters, const parallel::TensorParts& tensor_parts,
    const StageReplication& stage_replication, const std::vector<Fp8Layer>& in_fp8) {
  auto options = data_parallel_options(config);
  options.offload.storage = part_of_storage(config, mesh.all_of_training().rank());
  if (mesh.shape().experts_apart()) {
    const auto shared = parallel::share_experts(model, mesh, config.moe.overlap_degree);
    options.of_experts = [shared](const std::string& name) { return shared.contains(name); };
  }
  if (config.precision.has_fp8_weights()) options.fp8_weights = are_weights_of(in_fp8);
  std::map<std::string, optim::Treatment> treatments;
  for (const auto& parameter : parameters) treatments[parameter.name] = parameter.treatment;
  options.treatment = [treatments = std::move(treatments)](const std::string& name,
                                                           const torch::Tensor&) {
    return treatments.at(name);
  };
  if (config.adapter.lr_ratio != 1) {
    // LoRA+ (Hayou et al., ICML 2024), and what PEFT takes with B.
    options.apart = [](const std::string& name, const torch::Tensor& parameter) {
      return parameter.requires_grad() && (name.ends_with("_B") || parameter.dim() == 1);
    };
  }
  options.replication = [&](const std::string& name) {
    return replication_of(name, tensor_parts, stage_replication);
  };
  options.gradient_divide_factor = 1;  // the loss is divided by the valid tokens of all ranks
  const auto* inner = std::get_if<int>(&options.unit.reshard_after_forward);
  return parallel::parallelise(
      model, make_units(model, config.parallel, mesh.shape().pp > 1, tensor_parts),
      parallel::DataAxes::of(mesh, inner == nullptr ? 0 : *inner), options);
}

optim::Optimizer make_optimizer(const parallel::DataParallel& parallel,
                                const config::RunConfig& config,
                                const parallel::TensorParts& tensor_parts,
                                const mesh::DeviceMesh& mesh) {
  const auto& section = config.optimizer;
  optim::OptimizerOptions options{
      .type = section.type,
      .beta1 = section.beta1,
      .beta2 = section.beta2,
      .eps = section.eps,
      .momentum = section.momentum,
      .muon_momentum = section.muon_momentum,
      .muon_nesterov = section.muon_nesterov,
      .muon_steps = section.muon_steps,
      .muon_scale = section.muon_scale,
      .state_dtype = state_dtype(config.precision.optimizer_states),
      .stochastic_rounding = config.precision.stochastic_rounding,
      .seed = static_cast<uint64_t>(config.model.seed),
      .storage = storage_beside_activations(config, mesh.all_of_training().rank())};
  if (section.type == optim::OptimizerType::muon) {
    options.orthogonalise = Orthogonaliser(parallel, tensor_parts, options);
  }
  options.storage.host_memory -= parallel.memory_for_drives();
  std::vector<optim::Slice> slices;
  for (const auto& slice : parallel.slices()) {
    slices.push_back({.parameter = slice.parameter,
                      .gradient = slice.gradient,
                      .weight_decay = slice.decayed ? section.weight_decay : 0,
                      .treatment = slice.treatment,
                      .rate = slice.apart ? config.adapter.lr_ratio : 1,
                      .first_position = slice.begin,
                      .copy = slice.copy,
                      .gradient_factor = slice.gradient_factor,
                      .on_drives = slice.on_drives,
                      .bring = slice.bring,
                      .bring_gradient = slice.bring_gradient});
  }
  return {std::move(slices), std::move(options)};
}

/// The job's model. UserError: it is too small for the job's sequences or ranks.
models::ModelShape shape_for(const config::RunConfig& config, const mesh::DeviceMesh& mesh) {
  auto shape = config::resolve_model_shape(config.model);
  if (const auto longest = models::longest_sequence(shape);
      longest && config.data.seq_len > *longest) {
    user_error("data.seq_len: expected at most {} (the model's positions), got {}", *longest,
               config.data.seq_len);
  }
  // A model that begins here has the positions that it is trained on.
  if (config.model.path.empty() || config.model.init == models::Init::random) {
    shape.max_seq_len = std::max(shape.max_seq_len, config.data.seq_len);
  }
  if (const auto problem = models::division_problem(shape, mesh.shape().tp)) {
    user_error("parallel.tp: {}", *problem);
  }
  if (const auto problem = config::experts_problem(shape, mesh.shape())) {
    user_error("{}: {}", problem->key, problem->message);
  }
  if (const auto problem = config::moe_problem(config, shape)) {
    user_error("{}: {}", problem->key, problem->message);
  }
  return shape;
}

plan::PlanOptions plan_options(const config::RunConfig& config, const models::ModelShape& shape,
                               const mesh::DeviceMesh& mesh) {
  plan::PlanOptions planning{.device_is_host = mesh.device().is_cpu()};
  if (mesh.shape().pp > 1 && config.parallel.stage_balance == parallel::StageBalance::measured) {
    planning.measured =
        measure_layer_costs(config, {shape, mesh.shape(), mesh.device(), mesh.all_of_training()});
  }
  return planning;
}

struct Loaders {
  data::Loader train;
  std::optional<data::Loader> validation;
  std::optional<Questions> questions;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<std::string> notes;
};

/// This rank's batches: to train with, and to validate with if anything is held out.
Loaders open_loaders(const config::RunConfig& config, const models::ModelShape& shape,
                     const mesh::Axis& data_axis) {
  auto opened = open_data(config, shape.vocab_size, at::get_num_threads());
  data::LoaderOptions loading{.global_batch = config.train.global_batch,
                              .rank = data_axis.rank(),
                              .world_size = data_axis.size(),
                              .seed = static_cast<uint64_t>(config.data.seed),
                              .shuffle = config.data.shuffle};
  Loaders loaders{.train = data::Loader(std::move(opened.train), loading),
                  .validation = std::nullopt,
                  .questions = std::nullopt,
                  .tokenizer = std::move(opened.tokenizer),
                  .notes = std::move(opened.notes)};
  // The order of what is held out is its own and always the same: however few batches are asked for,
  // they are of every part.
  loading.seed = 0, loading.shuffle = true;
  loading.past_end = data::PastEnd::ignore;
  if (opened.validation) loaders.validation.emplace(std::move(opened.validation), loading);
  loaders.questions = open_questions(config, loaders.tokenizer, shape.vocab_size, loading);
  return loaders;
}

/// First values go to where slices are: to those on drives once the optimizer has room for them. Rank 0 has
/// sent them already if it does.
void fill_slices(parallel::DataParallel& parallel, optim::Optimizer& optimizer,
                 const config::RunConfig& config, const parallel::FlatBuffer::Fill& fill) {
  if (config.parallel.sync_module_states) return;
  parallel.keep_masters([&](size_t slice) { return optimizer.stored_parameter(slice); });
  parallel.fill(fill);
}

void set_precision(Run& run) {
  const auto& precision = run.config.precision;
  if (precision.autocast) run.autocast = torch_dtype(precision.compute);
  if (precision.compute == FloatType::fp16) run.loss_scaler.emplace();
}

}  // namespace

void set_length(Run& run, int64_t step, int64_t samples_seen) {
  const auto& train = run.config.train;
  run.num_steps = config::num_steps(train, run.train_loader.data().size(), step, samples_seen);
  run.learning_rate.total_steps = run.num_steps;
  const auto origin = fmt::format("{}, the steps of train.epochs {}", run.num_steps, train.epochs);
  if (train.epochs == 0) return;  // the job file's check has seen to it
  if (const auto problem = config::schedule_problem(run.config.schedule, run.num_steps, origin))
    user_error("{}: {}", problem->key, problem->message);
}

Run assemble(const config::RunConfig& config, const launch::RankEnvironment& environment) {
  set_threads(config.parallel, environment);
  return assemble(config, make_mesh(config.parallel, environment));
}

Run assemble(const config::RunConfig& config, const mesh::DeviceMesh& mesh) {
  const auto shape = shape_for(config, mesh);
  const auto data_axis = mesh.axis({"dp_replicate", "dp_shard"});
  const auto planning = plan_options(config, shape, mesh);
  auto adapter = adapter_of(config, shape);
  auto plan = plan::make_plan(with_adapter(config, adapter), shape, mesh.shape(), planning);
  auto loaders = open_loaders(config, shape, data_axis);
  auto model = make_model(config, shape, data_axis.rank(), mesh.device());
  const auto stored = stored_weights(*model, config.model);
  const auto routers = routers_of(*model, stored, mesh.device());
  const auto fill = complete(*model, adapter, config, stored, mesh.all_of_training());
  auto parameters = parameters_of(*model, config);
  if (mesh.shape().pp > 1) make_units(*model, config.parallel, /*is_stage=*/false, {});  // checks
  auto tensor_parts = parallel::tensor_parallel(
      *model, model->tensor_plan(), mesh, {.sequence_parallel = config.parallel.sequence_parallel});
  check_blocks(parameters, tensor_parts);
  auto fp8 = layers_in_fp8(plan.fp8);
  auto fp8_note = multiply_in_fp8(*model, fp8, config.precision, mesh.device());
  const auto stage_replication = parallel::keep_stages(*model, stage_modules(*model, plan.pipeline),
                                                       plan.pipeline.schedule.rank_of_stage, mesh);
  auto activations = checkpoint_activations(*model, adapter.spec, config, mesh);
  auto parallel =
      make_data_parallel(*model, config, mesh, parameters, tensor_parts, stage_replication, fp8);
  note_fp8_here(*model, fp8);
  auto optimizer = make_optimizer(parallel, config, tensor_parts, mesh);
  fill_slices(parallel, optimizer, config, fill_parts(fill, tensor_parts));
  parallel::Pipeline pipeline(plan.pipeline.schedule, mesh);
  Run run{.config = config,
          .data_axis = data_axis,
          .tensor_axis = mesh.axis("tp"),
          .pipeline_axis = mesh.axis("pp"),
          .world = mesh.all_of_training(),
          .save_axis = config.checkpoint.saves() ? mesh.world({.channel = mesh::kSaveChannel})
                                                 : mesh::Axis(),
          .device = mesh.device(),
          .axes = mesh.used_axes(),
          .train_loader = std::move(loaders.train),
          .validation_loader = std::move(loaders.validation),
          .tokenizer = std::move(loaders.tokenizer),
          .questions = std::move(loaders.questions),
          .data_notes = std::move(loaders.notes),
          .model = std::move(model),
          .parameters = std::move(parameters),
          .tensor_parts = std::move(tensor_parts),
          .parallel = std::move(parallel),
          .pipeline = std::move(pipeline),
          .plan = std::move(plan),
          .fp8 = std::move(fp8),
          .weights_note = stored ? stored->note_of_unread() : "",
          .fp8_note = std::move(fp8_note),
          .adapter = adapter.spec,
          .initial = adapter.initial,
          .activations = std::move(activations),
          .optimizer = std::move(optimizer),
          .learning_rate = learning_rate_options(config)};
  run.balance = make_balance(routers, *run.model, config.moe, mesh);
  set_length(run, /*step=*/0, /*samples_seen=*/0);
  set_precision(run);
  return run;
}

}  // namespace tessera::train
