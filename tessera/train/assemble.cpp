#include "tessera/train/assemble.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/checkpoint/pretrained.h"
#include "tessera/comm/device.h"
#include "tessera/memory/checkpoint.h"
#include "tessera/train/memory_account.h"

namespace tessera::train {
namespace {

void set_threads(const config::ParallelSection& parallel,
                 const launch::RankEnvironment& environment) {
  int64_t threads = parallel.threads_per_rank;
  if (threads == 0 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    threads =
        std::max<int64_t>(1, std::thread::hardware_concurrency() / environment.local_world_size);
  }
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
}

mesh::DeviceMesh make_mesh(const config::ParallelSection& parallel,
                           const launch::RankEnvironment& environment) {
  static const std::map<std::string, comm::BackendChoice> kBackends{
      {"auto", comm::BackendChoice::automatic},
      {"gloo", comm::BackendChoice::gloo},
      {"nccl", comm::BackendChoice::nccl}};
  const auto choice = comm::choose_device(kBackends.at(parallel.backend), environment.local_rank,
                                          environment.local_world_size);
  if (environment.rank == 0 && !choice.note.empty()) fmt::print("{}\n", choice.note);
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(parallel.timeout_seconds * 1000));
  const auto sizes = config::data_mesh(parallel, environment.world_size);
  if (const auto* problem = std::get_if<config::MeshProblem>(&sizes)) {
    user_error("{}: {}", problem->key, problem->message);
  }
  const auto& data = std::get<config::DataMesh>(sizes);
  return mesh::DeviceMesh({.dp_replicate = static_cast<int>(data.dp_replicate),
                           .dp_shard = static_cast<int>(data.dp_shard)},
                          {.rank = environment.rank,
                           .world_size = environment.world_size,
                           .master_addr = environment.master_addr,
                           .master_port = environment.master_port,
                           .listen_fd = environment.listen_fd,
                           .served = environment.agent_store,
                           .timeout = timeout},
                          /*transport=*/{}, choice.device);
}

data::Datasets open_data(const config::DataSection& section, int64_t vocab_size) {
  return data::open_datasets({.train = {.paths = section.train,
                                        .format = data::data_format_named(section.format),
                                        .token_dtype = data::token_dtype_named(section.token_dtype),
                                        .extensions = section.extensions},
                              .validation_paths = section.validation,
                              .validation_fraction = section.validation_fraction,
                              .seq_len = section.seq_len,
                              .vocab_size = vocab_size});
}

torch::Dtype dtype_named(const std::string& name) {
  return name == "bf16" ? torch::kBFloat16 : name == "fp16" ? torch::kHalf : torch::kFloat32;
}

/// On the meta device: each rank later fills its slices only. But where rank 0's values count, it
/// holds them whole.
std::shared_ptr<models::LanguageModel> make_model(const config::RunConfig& config,
                                                  const config::ModelShape& shape, int rank,
                                                  torch::Device device) {
  const auto options = torch::dtype(dtype_named(config.precision.parameters));
  const bool whole = config.parallel.sync_module_states && rank == 0;
  auto model = models::make_language_model(
      shape, options.device(whole ? device : torch::Device(torch::kMeta)));
  if (whole) checkpoint::load_pretrained(*model, config.model.path);
  return model;
}

parallel::FlatBuffer::Fill first_values(const models::LanguageModel& model,
                                        const config::ModelSection& section) {
  if (section.init == "pretrained") {
    return [stored = checkpoint::Pretrained(model, section.path)](
               const std::string& name, int64_t begin, const torch::Tensor& part) {
      stored.copy_part(name, begin, part);
    };
  }
  std::map<std::string, int64_t> dims;
  for (const auto& item : model.named_parameters()) dims[item.key()] = item.value().dim();
  return [&model, dims, seed = section.seed, std = section.init_std](
             const std::string& name, int64_t begin, const torch::Tensor& part) {
    models::initialise_part(model, name, dims.at(name), seed, std, begin, part);
  };
}

void checkpoint_activations(models::LanguageModel& model, const config::MemorySection& section) {
  static const std::map<std::string, memory::CheckpointMode> kModes{
      {"none", memory::CheckpointMode::none},
      {"full", memory::CheckpointMode::full},
      {"selective", memory::CheckpointMode::selective}};
  const auto mode = kModes.at(section.checkpointing);
  // Blocks end by adding their last product to the residual stream.
  memory::checkpoint_blocks(model.blocks(),
                            {.mode = mode,
                             .every_k = section.checkpoint_every,
                             .drop_last_product = mode == memory::CheckpointMode::selective});
}

std::vector<parallel::UnitModules> make_units(models::LanguageModel& model,
                                              const config::ParallelSection& section) {
  if (section.units == "block") {
    std::vector<parallel::UnitModules> units;
    for (auto& unit : model.units()) units.push_back({unit.name, std::move(unit.modules)});
    return units;
  }
  static const std::map<std::string, parallel::UnitRuleKind> kKinds{
      {"size", parallel::UnitRuleKind::by_size},
      {"name", parallel::UnitRuleKind::by_name},
      {"model", parallel::UnitRuleKind::whole_model}};
  return parallel::make_units(model, {.kind = kKinds.at(section.units),
                                      .patterns = section.unit_patterns,
                                      .min_num_params = section.min_num_params});
}

parallel::DataParallelOptions data_parallel_options(const config::RunConfig& config) {
  static const std::map<std::string, parallel::Placement> kPlacements{
      {"replicate", parallel::Placement::replicate},
      {"shard_optimizer", parallel::Placement::shard_optimizer},
      {"shard_gradients", parallel::Placement::shard_gradients},
      {"full_shard", parallel::Placement::full_shard}};
  static const std::map<std::string, parallel::BackwardPrefetch> kPrefetches{
      {"none", parallel::BackwardPrefetch::none},
      {"pre", parallel::BackwardPrefetch::pre},
      {"post", parallel::BackwardPrefetch::post}};
  const auto& section = config.parallel;
  const auto& precision = config.precision;
  parallel::DataParallelOptions options{
      .offload = {.offload_params = section.offload_params,
                  .offload_optimizer = section.offload_optimizer,
                  .fraction = section.offload_fraction},
      .backward_prefetch = kPrefetches.at(section.backward_prefetch),
      .forward_prefetch = section.forward_prefetch,
      .max_gathered_units = static_cast<int>(section.max_gathered_units),
      .gradient_divide_factor = 1,  // the loss is divided by the valid tokens of all ranks
      .sync_module_states = section.sync_module_states};
  options.unit.placement = kPlacements.at(section.placement);
  const auto& reshard = section.reshard_after_forward;
  if (reshard == "true" || reshard == "false") {
    options.unit.reshard_after_forward = reshard == "true";
  } else {
    options.unit.reshard_after_forward = std::stoi(reshard);
  }
  if (precision.compute != "fp32" && !precision.autocast) {
    options.unit.mixed_precision.reduce_dtype = dtype_named(precision.reduce);
    if (precision.parameters == "fp32") {
      options.unit.mixed_precision.param_dtype = dtype_named(precision.compute);
    }
  }
  if (config.optimizer.decay_norms_and_biases) {
    options.decays = [](const std::string&, const torch::Tensor&) { return true; };
  }
  return options;
}

parallel::DataParallel make_data_parallel(models::LanguageModel& model,
                                          const config::RunConfig& config,
                                          const mesh::DeviceMesh& mesh) {
  const auto fill = first_values(model, config.model);
  const auto options = data_parallel_options(config);
  const auto* inner = std::get_if<int>(&options.unit.reshard_after_forward);
  auto result =
      parallel::parallelise(model, make_units(model, config.parallel),
                            parallel::DataAxes::of(mesh, inner == nullptr ? 0 : *inner), options);
  if (!config.parallel.sync_module_states) result.fill(fill);
  return result;
}

optim::Optimizer make_optimizer(const parallel::DataParallel& parallel,
                                const config::RunConfig& config) {
  const auto& section = config.optimizer;
  std::vector<optim::Slice> slices;
  for (const auto& slice : parallel.slices()) {
    slices.push_back({.parameter = slice.parameter,
                      .gradient = slice.gradient,
                      .weight_decay = slice.decayed ? section.weight_decay : 0,
                      .first_position = slice.begin});
  }
  return {std::move(slices),
          {.type = section.type == "sgd" ? optim::OptimizerType::sgd : optim::OptimizerType::adamw,
           .beta1 = section.beta1,
           .beta2 = section.beta2,
           .eps = section.eps,
           .momentum = section.momentum,
           .state_dtype = dtype_named(config.precision.optimizer_states),
           .stochastic_rounding = config.precision.stochastic_rounding,
           .seed = static_cast<uint64_t>(config.model.seed)}};
}

optim::ScheduleOptions make_schedule(const config::RunConfig& config) {
  static const std::map<std::string, optim::ScheduleType> kTypes{
      {"constant", optim::ScheduleType::constant},
      {"linear", optim::ScheduleType::linear},
      {"cosine", optim::ScheduleType::cosine},
      {"wsd", optim::ScheduleType::wsd}};
  return {.type = kTypes.at(config.schedule.type),
          .learning_rate = config.optimizer.learning_rate,
          .min_ratio = config.schedule.min_ratio,
          .warmup_steps = config.schedule.warmup_steps,
          .decay_steps = config.schedule.decay_steps,
          .total_steps = config.train.steps};
}

}  // namespace

Run assemble(const config::RunConfig& config, const launch::RankEnvironment& environment) {
  set_threads(config.parallel, environment);
  return assemble(config, make_mesh(config.parallel, environment));
}

Run assemble(const config::RunConfig& config, const mesh::DeviceMesh& mesh) {
  const auto shape = config::resolve_model_shape(config.model);
  if (shape.family == config::ModelFamily::gpt2 && config.data.seq_len > shape.max_seq_len) {
    user_error("data.seq_len: expected at most {} (the model's positions), got {}",
               shape.max_seq_len, config.data.seq_len);
  }
  const auto data_axis = mesh.axis({"dp_replicate", "dp_shard"});
  auto datasets = open_data(config.data, shape.vocab_size);
  data::LoaderOptions loading{.global_batch = config.train.global_batch,
                              .rank = data_axis.rank(),
                              .world_size = data_axis.size(),
                              .seed = static_cast<uint64_t>(config.data.seed),
                              .shuffle = config.data.shuffle};
  data::Loader train_loader(std::move(datasets.train), loading);
  std::optional<data::Loader> validation_loader;
  if (datasets.validation) {
    loading.shuffle = false;
    loading.past_end = data::PastEnd::ignore;
    validation_loader.emplace(std::move(*datasets.validation), loading);
  }
  auto model = make_model(config, shape, data_axis.rank(), mesh.device());
  checkpoint_activations(*model, config.memory);
  auto parallel = make_data_parallel(*model, config, mesh);
  auto optimizer = make_optimizer(parallel, config);
  Run run{.config = config,
          .data_axis = data_axis,
          .save_axis = config.checkpoint.saves()
                           ? mesh.axis({"dp_replicate", "dp_shard"}, {.channel = "save"})
                           : mesh::Axis(),
          .device = mesh.device(),
          .axes = mesh.used_axes(),
          .train_loader = std::move(train_loader),
          .validation_loader = std::move(validation_loader),
          .model = std::move(model),
          .parallel = std::move(parallel),
          .optimizer = std::move(optimizer),
          .schedule = make_schedule(config),
          .predicted_activations = 0,
          .peak_activations = 0,
          .autocast = std::nullopt,
          .loss_scaler = std::nullopt};
  const auto rows = run.train_loader.rows().size();
  run.predicted_activations = predicted_activation_bytes(
      config, shape,
      config.data.seq_len *
          (config.train.micro_batch > 0 ? std::min(config.train.micro_batch, rows) : rows));
  if (config.precision.autocast) run.autocast = dtype_named(config.precision.compute);
  if (config.precision.compute == "fp16") run.loss_scaler.emplace();
  return run;
}

}  // namespace tessera::train
