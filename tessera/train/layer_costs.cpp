#include "tessera/train/layer_costs.h"

#include <ATen/ops/randint.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "tessera/models/language_model.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/module_path.h"
#include "tessera/nn/replace_values.h"
#include "tessera/precision/autocast.h"
#include "tessera/train/engine_options.h"

namespace tessera::train {
namespace {

/// The fastest of a few: what else runs on the machine only adds. Two where one takes long.
template <typename Work>
double seconds_of(const Work& work, torch::Device device) {
  constexpr int kRuns = 4;  // the first pays for fresh memory
  constexpr double kLong = 0.5;
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns && (run < 2 || best < kLong); ++run) {
    const auto begin = std::chrono::steady_clock::now();
    torch::Tensor result = work();
    result.sum().backward();
    if (!device.is_cpu()) result.sum().item<double>();  // waits for the GPU
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

/// Parameters of some modules of a model that was made on the meta device: they have memory and first values
/// while this lives.
class Present {
 public:
  Present(models::LanguageModel& model, const std::vector<std::string>& paths,
          const config::ModelSection& section, torch::Device device) {
    const torch::NoGradGuard no_grad;
    for (const auto& path : paths) {
      for (const auto& item : nn::find_module(model, path)->named_parameters()) {
        const auto& parameter = item.value();
        nn::replace_values(parameter,
                           torch::empty(parameter.sizes(), parameter.options().device(device)));
        models::initialise_part(model, path + "." + item.key(), parameter.dim(), section.seed,
                                section.init_std, 0, parameter.detach().view({-1}));
        parameters_.push_back(parameter);
      }
    }
  }
  ~Present() {
    for (auto& parameter : parameters_) {
      parameter.mutable_grad().reset();
      parameter.set_data(torch::zeros({1}, parameter.options()).expand(parameter.sizes()));
    }
  }
  Present(const Present&) = delete;
  Present& operator=(const Present&) = delete;

 private:
  std::vector<torch::Tensor> parameters_;
};

}  // namespace

plan::LayerCosts measure_layer_costs(const config::RunConfig& config, const MeasuredRank& rank) {
  auto one = models::shape_of_layer(rank.shape, rank.shape.num_layers - 1);
  one.num_layers = 1;
  const auto& precision = config.precision;
  const auto dtype = precision.autocast ? precision.parameters : precision.compute;
  const auto model =
      models::make_language_model(one, torch::dtype(torch_dtype(dtype)).device(torch::kMeta));
  checkpoint_activations(model->blocks(), block_end(model->shape()), config.memory);

  const int64_t rows = config.train.global_batch / rank.mesh.data_ranks() /
                       config::num_micro_batches(config, rank.mesh);
  const models::RowLayout layout{.seq_len = config.data.seq_len};
  const auto ids = at::randint(one.vocab_size, {std::max<int64_t>(1, rows), layout.seq_len},
                               torch::dtype(torch::kInt64).device(rank.device));
  const nn::RandomScope random(nn::RandomContext{});
  std::optional<precision::Autocast> autocast;
  if (precision.autocast) autocast.emplace(torch_dtype(precision.compute), rank.device.type());
  torch::Tensor hidden;
  const auto seconds_with = [&](const std::vector<std::string>& paths, const auto& work) {
    const Present present(*model, paths, config.model, rank.device);
    if (!hidden.defined()) hidden = work().detach().requires_grad_();
    return seconds_of(work, rank.device);
  };
  const auto paths = model->layout();
  const double embedding = seconds_with(paths.embedding, [&] { return model->embed(ids, layout); });
  const double block =
      seconds_with(paths.layers, [&] { return model->run_layers(hidden, 0, 1, layout); });
  const double head = seconds_with(paths.head, [&] { return model->head(hidden, ids, 1.0); });
  const auto seconds = torch::tensor({embedding, block, head}, torch::kFloat64);
  rank.all.all_reduce(seconds, comm::ReduceOp::max).wait();
  const auto* values = seconds.const_data_ptr<double>();
  return {.embedding = values[0], .block = values[1], .head = values[2]};
}

}  // namespace tessera::train
