#include "tessera/plan/rank_part.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/error.h"

namespace tessera::plan {
namespace {

/// The most that one of `ranks` has of `count` things.
int64_t most(int64_t count, int64_t ranks) { return (count + ranks - 1) / ranks; }

/// `shape` with this rank's part of each size, as models' tensor plans divide it.
models::ModelShape divided(models::ModelShape shape, int64_t tp) {
  if (const auto problem = models::division_problem(shape, tp)) {
    user_error("parallel.tp: {}", *problem);
  }
  shape.vocab_size = most(shape.vocab_size, tp);
  shape.ffn_dim = most(shape.ffn_dim, tp);
  shape.num_heads /= tp;
  shape.num_kv_heads = most(shape.num_kv_heads, tp);  // neighbours may have the same one
  return shape;
}

/// Each adapter keeps x A^T, and with dropout the x that enters, for each token.
std::vector<int64_t> adapter_numbers(const config::AdapterSection& adapter,
                                     const models::ModelShape& shape) {
  if (adapter.type == models::AdapterType::none) return {};
  std::vector<int64_t> numbers(static_cast<size_t>(shape.num_layers), 0);
  for (const auto& module : models::adapted_modules(adapter, shape)) {
    if (!module.layer) continue;
    numbers[static_cast<size_t>(*module.layer)] +=
        module.rank + (adapter.dropout > 0 ? module.inputs : 0);
  }
  return numbers;
}

}  // namespace

bool RankPart::has_tied_table() const {
  return shape.tie_embeddings && stages.front().embeds && stages.back().predicts;
}

std::vector<RankPart> rank_parts(const config::RunConfig& config, const models::ModelShape& shape,
                                 const mesh::MeshShape& mesh, const PipelinePlan& plan) {
  const auto& schedule = plan.schedule;
  RankPart any{.shape = divided(shape, mesh.tp), .mesh = mesh};
  any.adapter_numbers = adapter_numbers(config.adapter, shape);
  if (config.parallel.sequence_parallel) any.position_ranks = mesh.tp;
  any.key_copies = std::max<int64_t>(1, mesh.tp / shape.num_kv_heads);
  any.kept_for_weight = schedule.kept_for_weight;
  any.num_micro_batches = schedule.num_micro_batches;
  any.micro_batch = config.train.global_batch / mesh.data_ranks() / schedule.num_micro_batches;
  const auto& owners = schedule.rank_of_stage;
  const int last = schedule.num_stages - 1;
  std::vector<RankPart> parts;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    auto part = any;
    std::map<int, int> own;  // stage: its index here
    std::set<int> peers;
    for (int stage = 0; stage <= last; ++stage) {
      const auto at = static_cast<size_t>(stage);
      if (owners[at] != rank) continue;
      own.emplace(stage, static_cast<int>(own.size()));
      if (stage > 0) peers.insert(owners[at - 1]);
      if (stage < last) peers.insert(owners[at + 1]);
      part.stages.push_back({.layers = plan.layers_of(stage),
                             .embeds = stage == 0,
                             .predicts = stage == last,
                             .sends_output = stage < last && owners[at + 1] != rank,
                             .sends_gradient = stage > 0 && owners[at - 1] != rank});
    }
    peers.erase(rank);
    part.num_peers = static_cast<int64_t>(peers.size());
    part.shape.num_layers = 0;
    for (const auto& stage : part.stages) {
      part.shape.num_layers += stage.layers.end - stage.layers.begin;
    }
    part.shares_table = shape.tie_embeddings && owners.front() != owners.back() &&
                        (own.contains(0) || own.contains(last));
    for (auto action : schedule.ranks[static_cast<size_t>(rank)]) {
      action.stage = own.at(action.stage);
      part.actions.push_back(action);
      if (action.kind == schedule::Kind::backward_input) {
        part.stages[static_cast<size_t>(action.stage)].splits_backward = true;
      }
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace tessera::plan
