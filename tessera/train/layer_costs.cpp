#include "tessera/train/layer_costs.h"

#include <ATen/ops/randint.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "tessera/models/language_model.h"
#include "tessera/nn/dropout.h"
#include "tessera/precision/autocast.h"
#include "tessera/train/engine_options.h"

namespace tessera::train {
namespace {

/// The fastest of a few: what else runs on the machine only adds.
template <typename Work>
double seconds_of(const Work& work, torch::Device device) {
  constexpr int kRuns = 4;  // the first pays for fresh memory
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    torch::Tensor result = work();
    result.sum().backward();
    if (!device.is_cpu()) result.sum().item<double>();  // waits for the GPU
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

plan::LayerCosts measure_layer_costs(const config::RunConfig& config,
                                     const models::ModelShape& shape,
                                     const mesh::DeviceMesh& mesh) {
  auto one = models::shape_of_layer(shape, shape.num_layers - 1);
  one.num_layers = 1;
  const auto& precision = config.precision;
  const auto dtype = precision.autocast ? precision.parameters : precision.compute;
  const auto options = torch::dtype(torch_dtype(dtype)).device(mesh.device());
  const auto model = models::make_language_model(one, options);
  models::initialise(*model, config.model.seed, config.model.init_std);
  checkpoint_activations(model->blocks(), block_end(model->shape()), config.memory);

  const int64_t rows = config.train.global_batch / mesh.shape().data_ranks() /
                       config::num_micro_batches(config, mesh.shape());
  const models::RowLayout layout{.seq_len = config.data.seq_len};
  const auto ids = at::randint(shape.vocab_size, {std::max<int64_t>(1, rows), layout.seq_len},
                               torch::dtype(torch::kInt64).device(mesh.device()));
  const nn::RandomScope random(nn::RandomContext{});
  std::optional<precision::Autocast> autocast;
  if (precision.autocast) autocast.emplace(torch_dtype(precision.compute), mesh.device().type());
  auto hidden = model->embed(ids, layout).detach().requires_grad_();
  const auto seconds = torch::tensor(
      {seconds_of([&] { return model->embed(ids, layout); }, mesh.device()),
       seconds_of([&] { return model->run_layers(hidden, 0, 1, layout); }, mesh.device()),
       seconds_of([&] { return model->head(hidden, ids, 1.0); }, mesh.device())},
      torch::kFloat64);
  mesh.all_of_training().all_reduce(seconds, comm::ReduceOp::max).wait();
  const auto* values = seconds.const_data_ptr<double>();
  return {.embedding = values[0], .block = values[1], .head = values[2]};
}

}  // namespace tessera::train
