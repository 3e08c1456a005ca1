#include "tessera/plan/pipeline.h"

#include <fmt/ranges.h>

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/schedule/check.h"
#include "tessera/schedule/csv.h"
#include "tessera/schedule/generate.h"

namespace tessera::plan {
namespace {

using schedule::Schedule;

/// Returns make(); its errors name the key.
template <typename Make>
Schedule of_key(const Make& make) {
  try {
    return make();
  } catch (const UserError& error) {
    user_error("parallel.pipeline_schedule: {}", error.what());
  }
}

Schedule make_schedule(const config::ParallelSection& parallel, int ranks, int micro_batches) {
  const auto& wish = parallel.pipeline_schedule;
  const auto stages = static_cast<int>(parallel.stages_per_rank);
  if (!wish.ends_with(".csv")) {
    return of_key([&] {
      return schedule::make_schedule({.family = schedule::parse_family(wish),
                                      .num_ranks = ranks,
                                      .num_micro_batches = micro_batches,
                                      .stages_per_rank = stages});
    });
  }
  auto table = of_key([&] {
    auto read = schedule::read_csv(wish);
    schedule::check(read);
    return read;
  });
  const auto fits = [&](const char* key, const char* what, int found, int expected) {
    if (found == expected) return;
    user_error("{}: expected {} {}, which {} is for, got {}", key, found, what, wish, expected);
  };
  fits("parallel.pp", "ranks", table.num_ranks(), ranks);
  fits("train.micro_batch", "micro-batches of each data rank's share", table.num_micro_batches,
       micro_batches);
  if (stages > 0) {
    fits("parallel.stages_per_rank", "stages a rank", table.num_stages / ranks, stages);
  }
  return table;
}

/// The layers that the user gave each stage.
void check_layers(const std::vector<int64_t>& layers, int num_stages, int64_t num_layers) {
  const auto total = std::accumulate(layers.begin(), layers.end(), int64_t{0});
  if (static_cast<int>(layers.size()) != num_stages || total != num_layers) {
    user_error(
        "parallel.stage_layers: expected {} numbers, one a stage, whose sum is the model's {} "
        "layers, got [{}]",
        num_stages, num_layers, fmt::join(layers, ", "));
  }
  for (size_t stage = 1; stage + 1 < layers.size(); ++stage) {
    if (layers[stage] > 0) continue;
    user_error(
        "parallel.stage_layers: stage {}: expected at least one layer, got none; only the "
        "first stage and the last may be without",
        stage);
  }
}

}  // namespace

LayerCosts operations(const models::ModelShape& shape, int64_t seq_len) {
  auto longer = shape;
  longer.num_layers += 1;
  const double all = models::training_flops_per_token(shape, seq_len);
  const double block = models::training_flops_per_token(longer, seq_len) - all;
  // First layers of another kind count as the embedding's, beyond what the others take.
  double others = 0;
  const auto first = models::alike_layers(shape).front();
  if (first.count < shape.num_layers) {
    const auto weights = [](const models::ModelShape& s) {
      return static_cast<double>(models::matrix_weights(s) - s.vocab_size * s.dim) /
             static_cast<double>(s.num_layers);
    };
    const auto last = models::shape_of_layer(shape, shape.num_layers - 1);
    constexpr double kOfWeight = 6;
    others = kOfWeight * (weights(first.shape) - weights(last)) * static_cast<double>(first.count);
  }
  return {.embedding = others,
          .block = block,
          .head = all - others - block * static_cast<double>(shape.num_layers)};
}

std::vector<int64_t> cut_layers(int64_t num_layers, int num_stages, const LayerCosts& costs) {
  const auto last = static_cast<size_t>(num_stages) - 1;
  std::vector<int64_t> layers(last + 1, 1);
  std::vector<double> cost(last + 1, costs.block);
  layers.front() = layers.back() = 0;
  cost.front() = cost.back() = 0;
  cost.front() += costs.embedding;
  cost.back() += costs.head;
  const auto placed = std::accumulate(layers.begin(), layers.end(), int64_t{0});
  for (int64_t layer = placed; layer < num_layers; ++layer) {
    size_t cheapest = last;
    for (size_t stage = last; stage-- > 0;) {
      if (cost[stage] < cost[cheapest] * (1 - 1e-9)) cheapest = stage;
    }
    ++layers[cheapest];
    cost[cheapest] += costs.block;
  }
  return layers;
}

PipelinePlan::Layers PipelinePlan::layers_of(int stage) const {
  const auto begin =
      std::accumulate(stage_layers.begin(), stage_layers.begin() + stage, int64_t{0});
  return {begin, begin + stage_layers[static_cast<size_t>(stage)]};
}

PipelinePlan pipeline_plan(const config::RunConfig& config, const models::ModelShape& shape,
                           const mesh::MeshShape& mesh, const std::optional<LayerCosts>& measured) {
  const auto& parallel = config.parallel;
  PipelinePlan plan{
      .schedule = make_schedule(parallel, static_cast<int>(mesh.pp),
                                static_cast<int>(config::num_micro_batches(config, mesh))),
      .stage_layers = parallel.stage_layers};
  const int stages = plan.schedule.num_stages;
  if (!plan.stage_layers.empty()) {
    check_layers(plan.stage_layers, stages, shape.num_layers);
    return plan;
  }
  if (shape.num_layers < stages) {
    user_error("parallel.pp: {} layers cannot be divided over {} stages ({} ranks, {}); set fewer",
               shape.num_layers, stages, mesh.pp, plan.schedule.name);
  }
  auto costs = measured.value_or(operations(shape, config.data.seq_len));
  if (parallel.stage_balance == parallel::StageBalance::layers) costs = LayerCosts{};
  plan.stage_layers = cut_layers(shape.num_layers, stages, costs);
  return plan;
}

}  // namespace tessera::plan
