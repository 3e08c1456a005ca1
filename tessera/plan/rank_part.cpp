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
models::ModelShape divided(models::ModelShape shape, const mesh::MeshShape& mesh) {
  const int64_t tp = mesh.tp;
  if (const auto problem = models::division_problem(shape, tp)) {
    user_error("parallel.tp: {}", *problem);
  }
  shape.vocab_size = most(shape.vocab_size, tp);
  shape.ffn_dim = most(shape.ffn_dim, shape.experts.num > 0 ? mesh.expert_tp() : tp);
  shape.experts.token_ranks = tp / mesh.expert_tp();
  shape.experts.shared_ffn_dim = most(shape.experts.shared_ffn_dim, tp);
  shape.experts.dense_ffn_dim = most(shape.experts.dense_ffn_dim, tp);
  shape.num_heads /= tp;
  shape.num_kv_heads = most(shape.num_kv_heads, tp);  // neighbours may have the same one
  return shape;
}

/// The matrices of a block as its parts list them: of each part the last one leads out, the others
/// read what enters the part. Each expert is a part; what a mixture has beside parts reads what enters it.
enum class MatrixPlace {
  into_attention,
  out_of_attention,
  into_feed_forward,
  into_expert,
  last_product
};
using MatrixPlaces = std::map<std::string, MatrixPlace>;  // by the name of the weight in the block
MatrixPlaces matrix_places(const models::ModelShape& shape) {
  MatrixPlaces places;
  for (const auto& alike : models::alike_layers(shape)) {
    std::string attention, part, last;
    const auto parameters = models::spec_of(shape.family).parameters(alike.shape);
    for (const auto& parameter : parameters.block) {
      if (parameter.shape.size() != 2) continue;
      const auto layer = parameter.name.substr(0, parameter.name.rfind('.'));
      const auto own = layer.substr(0, layer.rfind('.'));
      if (attention.empty()) attention = own;
      using enum MatrixPlace;
      const auto into = own == attention      ? into_attention
                        : parameter.of_expert ? into_expert
                                              : into_feed_forward;
      const bool beside_parts = alike.shape.experts.num > 0 && own.find('.') == own.npos;
      places[parameter.name] = own == attention ? out_of_attention
                               : beside_parts   ? into_feed_forward
                                                : last_product;
      if (own == part) places[last] = into;
      part = own, last = parameter.name;
    }
  }
  return places;
}

/// A gradient reads what enters the matrix.
void mark(TrainedOfBlock& block, MatrixPlace place) {
  switch (place) {
    case MatrixPlace::into_attention:
      block.attention = true;
      break;
    case MatrixPlace::out_of_attention:  // the attention keeps its result
      break;
    case MatrixPlace::into_feed_forward:
      block.feed_forward = true;
      break;
    case MatrixPlace::into_expert:
      block.expert_rows = true;
      break;
    case MatrixPlace::last_product:
      block.last_product = true;
  }
}

/// Which gradients there are beside what an adapter freezes.
void note_trained(const config::AdapterSection& adapter, const models::ModelShape& shape,
                  RankPart& part) {
  part.blocks.assign(static_cast<size_t>(shape.num_layers), {});
  if (adapter.type == models::AdapterType::none) return;
  part.trains_head = false;
  bool embeds = false;
  std::vector<bool> trained(part.blocks.size(), false);
  for (auto& block : part.blocks) {
    block.attention = block.feed_forward = block.expert_rows = block.last_product = false;
  }
  const auto places = matrix_places(shape);
  const auto prefix = models::spec_of(shape.family).parameters(shape).block_prefix;
  const auto place_of = [&](const std::string& name, int64_t layer) {
    return places.find(name.substr(prefix.size() + std::to_string(layer).size() + 1));
  };
  for (const auto& parameter : models::trained_parameters(adapter, shape)) {
    embeds = embeds || parameter.of_embedding;
    if (!parameter.layer) {
      const bool table = !parameter.of_adapter && parameter.shape.size() == 2;
      if (table && (shape.tie_embeddings || !parameter.of_embedding)) part.trains_head = true;
      continue;
    }
    const auto layer = static_cast<size_t>(*parameter.layer);
    trained[layer] = true;
    const auto place = place_of(parameter.name, *parameter.layer);
    if (!parameter.of_adapter && place != places.end()) mark(part.blocks[layer], place->second);
  }
  for (const auto& module : models::adapted_modules(adapter, shape)) {
    if (!module.layer) continue;
    auto& block = part.blocks[static_cast<size_t>(*module.layer)];
    // A token meets a few of all experts.
    const double met = module.of_expert ? models::expert_rows(part.shape) /
                                              static_cast<double>(part.shape.experts.num)
                                        : 1;
    const auto add = [&](int64_t numbers) {
      block.adapter_numbers += met * static_cast<double>(numbers);
    };
    add(module.rank + (adapter.type == models::AdapterType::dora ? module.outputs : 0));
    const auto place = place_of(module.path + ".weight", *module.layer);
    if (place == places.end()) continue;
    if (adapter.dropout == 0 || place->second == MatrixPlace::last_product) {
      mark(block, place->second);
    } else {
      add(module.inputs);  // each has what is left of them
    }
  }
  bool before = embeds;
  for (size_t i = 0; i < part.blocks.size(); ++i) {
    part.blocks[i].input_graph = before;
    before = part.blocks[i].has_graph = before || trained[i];
  }
}

}  // namespace

bool RankPart::has_tied_table() const {
  return shape.tie_embeddings && stages.front().embeds && stages.back().predicts;
}

std::vector<RankPart> rank_parts(const config::RunConfig& config, const models::ModelShape& shape,
                                 const mesh::MeshShape& mesh, const PipelinePlan& plan) {
  const auto& schedule = plan.schedule;
  if (const auto problem = config::experts_problem(shape, mesh)) {
    user_error("{}: {}", problem->key, problem->message);
  }
  if (const auto problem = models::uneven_experts(config.adapter, shape, mesh.ep)) {
    user_error("adapter: {}", *problem);
  }
  RankPart any{.shape = divided(shape, mesh), .mesh = mesh};
  note_trained(config.adapter, shape, any);
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
