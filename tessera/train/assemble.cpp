#include "tessera/train/assemble.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/checkpoint/pretrained.h"

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
  if (parallel.backend == "nccl") {
    user_error("parallel.backend: expected auto or gloo, got nccl: this build has no CUDA");
  }
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(parallel.timeout_seconds * 1000));
  const int64_t replicas =
      parallel.dp_replicate == -1 ? environment.world_size : parallel.dp_replicate;
  return mesh::DeviceMesh({.dp_replicate = static_cast<int>(replicas)},
                          {.rank = environment.rank,
                           .world_size = environment.world_size,
                           .master_addr = environment.master_addr,
                           .master_port = environment.master_port,
                           .listen_fd = environment.listen_fd,
                           .served = environment.agent_store,
                           .timeout = timeout});
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

std::shared_ptr<models::LanguageModel> make_model(const config::RunConfig& config,
                                                  const config::ModelShape& shape) {
  auto model = models::make_language_model(shape);
  if (config.model.init == "pretrained") {
    checkpoint::load_pretrained(*model, config.model.path);
  } else {
    models::initialise(*model, config.model.seed, config.model.init_std);
  }
  return model;
}

parallel::Replicated make_data_parallel(models::LanguageModel& model,
                                        const config::RunConfig& config, const mesh::Axis& axis) {
  std::vector<parallel::UnitModules> units;
  for (auto& unit : model.units()) units.push_back({unit.name, std::move(unit.modules)});
  parallel::ReplicateOptions options;
  if (config.optimizer.decay_norms_and_biases) options.decays = [](const auto&) { return true; };
  return parallel::replicate(model, std::move(units), axis, options);
}

optim::Optimizer make_optimizer(const parallel::Replicated& replicated,
                                const config::OptimizerSection& section) {
  std::vector<optim::Slice> slices;
  for (const auto& buffer : replicated.buffers()) {
    const int64_t split = buffer.decayed(), size = buffer.data().numel();
    const auto add = [&](int64_t begin, int64_t end, double weight_decay) {
      if (begin == end) return;
      slices.push_back({buffer.data().slice(0, begin, end), buffer.gradient().slice(0, begin, end),
                        weight_decay});
    };
    add(0, split, section.weight_decay);
    add(split, size, 0);
  }
  return {std::move(slices),
          {.type = section.type == "sgd" ? optim::OptimizerType::sgd : optim::OptimizerType::adamw,
           .beta1 = section.beta1,
           .beta2 = section.beta2,
           .eps = section.eps,
           .momentum = section.momentum}};
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
  return assemble(config, make_mesh(config.parallel, environment).axis("dp_replicate"));
}

Run assemble(const config::RunConfig& config, const mesh::Axis& data_axis) {
  const auto shape = config::resolve_model_shape(config.model);
  if (shape.family == config::ModelFamily::gpt2 && config.data.seq_len > shape.max_seq_len) {
    user_error("data.seq_len: expected at most {} (the model's positions), got {}",
               shape.max_seq_len, config.data.seq_len);
  }
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
  auto model = make_model(config, shape);
  auto replicated = make_data_parallel(*model, config, data_axis);
  auto optimizer = make_optimizer(replicated, config.optimizer);
  return {.config = config,
          .data_axis = data_axis,
          .train_loader = std::move(train_loader),
          .validation_loader = std::move(validation_loader),
          .model = std::move(model),
          .replicated = std::move(replicated),
          .optimizer = std::move(optimizer),
          .schedule = make_schedule(config)};
}

}  // namespace tessera::train
