#include "tessera/plan/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "tessera/config/needs.h"
#include "tessera/models/spec.h"
#include "tessera/plan/fp8_layers.h"

namespace tessera::plan {
namespace {

using config::RunConfig;
using models::Division;

/// Do ranks of tp (of an expert's, of etp) sum the gradients of a parameter? Those of norms and
/// biases of width D, where positions are divided; of norms of heads; of key heads that several
/// ranks have (docs/tensor_parallel.md).
bool is_summed(const RankPart& part, const auto& parameter) {
  if ((parameter.of_expert ? part.mesh.expert_tp() : part.mesh.tp) == 1) return false;
  switch (parameter.division) {
    case Division::parts:
      return false;
    case Division::key_heads:
      return part.key_copies > 1;
    case Division::per_position:
      return part.position_ranks > 1;
    case Division::per_head:
      return true;
  }
  __builtin_unreachable();
}

/// Elements of a unit's parameters that are kept alike.
struct Amount {
  int64_t elements = 0;       // that are trained
  int64_t in_matrices = 0;    // of transformer blocks; likewise the next ones
  int64_t in_blocks = 0;      // whose states the optimizer keeps in 8 bits
  int64_t summed = 0;         // of whose gradients ranks of tp hold summands
  int64_t frozen = 0;         // elements beside these
  int64_t in_fp8 = 0;         // of the first, those that are gathered in 8 bits
  int64_t fp8_in_blocks = 0;  // of these, those in_blocks
  int64_t codes = 0;          // bytes of quantised weights, which are not trained

  Amount& operator+=(const Amount& other) {
    elements += other.elements;
    in_matrices += other.in_matrices;
    in_blocks += other.in_blocks;
    summed += other.summed;
    frozen += other.frozen;
    in_fp8 += other.in_fp8;
    fp8_in_blocks += other.fp8_in_blocks;
    codes += other.codes;
    return *this;
  }
  Amount shared_by(int64_t ranks) const {
    return {elements / ranks, in_matrices / ranks, in_blocks / ranks,     summed / ranks,
            frozen / ranks,   in_fp8 / ranks,      fp8_in_blocks / ranks, codes / ranks};
  }
};

/// A unit without buffers, and how much they are to hold.
struct Sized {
  UnitPlan unit;
  Amount rest;     // but for the next ones
  Amount experts;  // this rank's, where they are apart
};

/// Which of a unit's parameters: those of experts that are apart (mesh::MeshShape), or all others?
enum class Kind { experts, rest };

Kind kind_of(const RankPart& part, const auto& parameter) {
  return parameter.of_expert && part.mesh.experts_apart() ? Kind::experts : Kind::rest;
}

/// What a rank has of the kind: each of ep as much.
Amount of_kind(const RankPart& part, Kind kind, const Amount& all) {
  return kind == Kind::experts ? all.shared_by(part.mesh.ep) : all;
}

/// Is it the weight of a linear layer, which model.weights tells how to keep?
bool is_linear(const models::ParameterSpec& parameter) {
  return parameter.shape.size() == 2 && !parameter.of_router;
}

/// What a rank has of parameters other than embeddings, all being trained. The size of the whole ones
/// decides which states the optimizer keeps in 8 bits. `quantised`: linear layers are kept as model.weights says.
Amount amount_of(const RankPart& part, const RunConfig& config,
                 const std::vector<models::ParameterSpec>& whole,
                 const std::vector<models::ParameterSpec>& parts, Kind kind,
                 bool quantised = false) {
  Amount all;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool matrix = parts[i].shape.size() == 2;
    if (kind_of(part, parts[i]) != kind) continue;
    if (quantised && is_linear(parts[i])) {
      all.codes += quantised_bytes({.format = config.model.weights,
                                    .out = parts[i].shape[0],
                                    .in = parts[i].shape[1],
                                    .block = config.model.weights_block});
      continue;
    }
    const int64_t elements = parts[i].num_elements();
    const auto treatment =
        optim::treatment_of(config.optimizer.type, config.precision.optimizer_states,
                            {.num_elements = whole[i].num_elements()});
    all.elements += elements;
    if (matrix) all.in_matrices += elements;
    if (treatment == optim::Treatment::blocks) all.in_blocks += elements;
    if (is_summed(part, parts[i])) all.summed += elements;
  }
  return of_kind(part, kind, all);
}

/// One of a model's blocks.
struct Block {
  const std::vector<models::ParameterSpec>&whole, &parts;
  std::string path;
  const std::set<std::string>& in_fp8;  ///< names of weights
};

/// The `amount` of a block with what of it is gathered in 8 bits.
Amount in_fp8(const RankPart& part, const RunConfig& config, const Block& block, Kind kind,
              Amount amount) {
  if (block.in_fp8.empty()) return amount;
  std::vector<models::ParameterSpec> whole, parts;
  for (size_t i = 0; i < block.parts.size(); ++i) {
    const auto& spec = block.parts[i];
    if (!block.in_fp8.contains(block.path + spec.name)) continue;
    whole.push_back(block.whole[i]);
    parts.push_back(spec);
  }
  const auto found = amount_of(part, config, whole, parts, kind);
  amount.in_fp8 = found.elements, amount.fp8_in_blocks = found.in_blocks;
  return amount;
}

/// Makes of the `amount` of a unit of which all is trained what an adapter leaves to train; is any of
/// it the model's own?
bool freeze(const RunConfig& config, const std::vector<models::TrainedParameter>& whole,
            const std::vector<models::TrainedParameter>& trained, const RankPart& part, Kind kind,
            const auto& is_in_unit, Amount& amount) {
  Amount all, of_model;
  for (size_t i = 0; i < trained.size(); ++i) {
    const auto& parameter = trained[i];
    if (kind_of(part, parameter) != kind || !is_in_unit(parameter)) continue;
    const auto elements = parameter.num_elements();
    const auto treatment =
        optim::treatment_of(config.optimizer.type, config.precision.optimizer_states,
                            {.of_embedding = parameter.of_embedding && !parameter.of_adapter,
                             .num_elements = whole[i].num_elements()});
    if (treatment == optim::Treatment::blocks) all.in_blocks += elements;
    all.elements += elements;
    if (!parameter.of_adapter) of_model.elements += elements;
    if (parameter.layer && parameter.shape.size() == 2) all.in_matrices += elements;
    if (is_summed(part, parameter)) all.summed += elements;
  }
  all = of_kind(part, kind, all), of_model = of_kind(part, kind, of_model);
  all.frozen = amount.elements - of_model.elements;
  all.codes = amount.codes;
  amount = all;
  return of_model.elements > 0;
}

/// Divides each unit into what the adapter trains and the rest, which is frozen.
void freeze(const RunConfig& config, const models::ModelShape& shape, const RankPart& part,
            std::vector<Sized>& units) {
  auto sized = part.shape;
  sized.num_layers = shape.num_layers;
  const auto whole = models::trained_parameters(config.adapter, shape);
  const auto trained = models::trained_parameters(config.adapter, shape, sized);
  for (auto& [unit, rest, experts] : units) {
    const bool embeds = unit.name == "embedding";
    const auto is_in_unit = [&, begin = unit.layers.begin, end = unit.layers.end,
                             predicts = unit.predicts](const models::TrainedParameter& p) {
      if (p.layer) return *p.layer >= begin && *p.layer < end;
      return p.of_embedding ? embeds : predicts;
    };
    if (!freeze(config, whole, trained, part, Kind::rest, is_in_unit, rest)) unit.table = 0;
    freeze(config, whole, trained, part, Kind::experts, is_in_unit, experts);
  }
}

/// Adds the units of a stage's blocks.
void add_blocks(const RankPart& part, const models::ModelShape& whole_shape,
                const RunConfig& config, size_t stage, const std::set<std::string>& names_in_fp8,
                std::vector<Sized>& units) {
  const bool quantised = config.model.weights != WeightFormat::as_stored;
  const auto& layers = part.stages[stage].layers;
  const auto& spec = models::spec_of(whole_shape.family);
  const int64_t dense_end = whole_shape.experts.num_dense_layers;
  int64_t end = layers.begin;
  while (end < layers.end) {
    const int64_t begin = end;  // up to `end` they are alike
    end = begin < dense_end ? std::min(dense_end, layers.end) : layers.end;
    const auto whole = spec.parameters(models::shape_of_layer(whole_shape, begin));
    const auto parts = spec.parameters(models::shape_of_layer(part.shape, begin));
    const auto amount = [&](Kind kind) {
      return amount_of(part, config, whole.block, parts.block, kind, quantised);
    };
    const auto rest = amount(Kind::rest), experts = amount(Kind::experts);
    for (int64_t i = begin; i < end; ++i) {
      const Block block{.whole = whole.block,
                        .parts = parts.block,
                        .path = fmt::format("{}{}.", parts.block_prefix, i),
                        .in_fp8 = names_in_fp8};
      units.push_back(
          {{.name = "layers." + std::to_string(i), .stage = stage, .layers = {i, i + 1}},
           in_fp8(part, config, block, Kind::rest, rest),
           in_fp8(part, config, block, Kind::experts, experts)});
    }
  }
}

/// The units of a rank: embedding, blocks, and norm with head; or tied, embedding with norm and
/// head, then blocks.
std::vector<Sized> sized_units(const RankPart& part, const models::ModelShape& whole_shape,
                               const RunConfig& config) {
  const auto& shape = part.shape;
  const auto whole = models::spec_of(shape.family).parameters(whole_shape);
  const auto parameters = models::spec_of(shape.family).parameters(shape);
  const auto amount = [&](const auto& all, const auto& parts) {
    return amount_of(part, config, all, parts, Kind::rest);
  };
  const int64_t table = shape.vocab_size * shape.dim;
  const int64_t elsewhere = part.shares_table ? table : 0;
  const bool tied_here = part.has_tied_table();
  // Embeddings have no states of 8 bits but beside fp8+fp16; neither is a matrix of them one of a block.
  const auto outside_of_blocks = [](Amount own) {
    own.in_matrices = 0;
    return own;
  };
  auto head = outside_of_blocks(amount(whole.head, parameters.head));
  auto embedding = outside_of_blocks(amount(whole.embedding, parameters.embedding));
  if (config.precision.optimizer_states != optim::StateType::fp8_fp16) embedding.in_blocks = 0;
  if (tied_here) {
    embedding += head;
  } else if (shape.tie_embeddings) {
    head.elements += table;
  }
  const auto names = weights_in_fp8(config, whole_shape.num_layers, part);
  std::vector<Sized> units;
  for (size_t stage = 0; stage < part.stages.size(); ++stage) {
    const auto& layers = part.stages[stage].layers;
    const auto at = layers.begin;
    if (part.stages[stage].embeds) {
      units.push_back({{.name = "embedding",
                        .stage = stage,
                        .layers = {at, at},
                        .predicts = tied_here,
                        .table = elsewhere},
                       embedding});
    }
    add_blocks(part, whole_shape, config, stage, names, units);
    if (part.stages[stage].predicts && !tied_here) {
      units.push_back({{.name = "head",
                        .stage = stage,
                        .layers = {layers.end, layers.end},
                        .predicts = true,
                        .table = elsewhere},
                       head});
    }
  }
  return units;
}

/// Joins all units of a stage into one.
std::vector<Sized> one_a_stage(const std::vector<Sized>& units) {
  std::vector<Sized> result;
  for (const auto& [unit, rest, experts] : units) {
    if (result.empty() || result.back().unit.stage != unit.stage) {
      result.push_back({unit});
      result.back().unit.name = "model";
      result.back().unit.table = 0;
    }
    auto& all = result.back();
    all.rest += rest;
    all.experts += experts;
    all.unit.layers.end = unit.layers.end;
    all.unit.predicts = all.unit.predicts || unit.predicts;
    all.unit.table += unit.table;
  }
  return result;
}

/// The types of a buffer's elements are those that data_parallel_options (train/) asks for.
BufferOptions buffer_options(const RunConfig& config, const mesh::MeshShape& mesh) {
  const auto& section = config.parallel;
  const auto& precision = config.precision;
  BufferOptions options{.placement = section.placement,
                        .offloads_by_copy = section.offload_params == parallel::OffloadParams::none,
                        .in_backward = config.optimizer.in_backward,
                        .fp8_gradients = precision.has_fp8_gradients(),
                        .slice_has_type_of_whole = true};
  if (parallel::is_sharded(section.placement)) options.num_slices = mesh.dp_shard;
  const auto slice = precision.parameters;
  const auto whole = precision.computes_in_half() ? precision.compute : slice;
  const auto gradient = precision.computes_in_half() ? precision.reduce : slice;
  options.whole_bytes = bytes_of(whole);
  options.slice_bytes = bytes_of(slice);
  options.gradient_bytes = bytes_of(gradient);
  options.slice_has_type_of_whole = slice == whole;
  options.gradient_has_type_of_sum = gradient == slice || gradient == FloatType::fp32;
  return options;
}

/// The same for a buffer of experts that are apart.
BufferOptions of_experts(BufferOptions options, const mesh::MeshShape& mesh) {
  options.of_experts = true;
  if (parallel::is_sharded(options.placement)) options.num_slices = mesh.expert_shard();
  return options;
}

/// Where slices and their gradients are on the host. What is on drives is updated there.
bool offloads_slices(const config::ParallelSection& section, bool device_is_host) {
  using parallel::OffloadOptimizer, parallel::OffloadParams;
  const auto optimizer = section.offload_optimizer;
  return section.offload_params == OffloadParams::host || optimizer == OffloadOptimizer::host ||
         (optimizer == OffloadOptimizer::nvme && !device_is_host);
}

/// The same for a buffer that is not trained: in the dtype of computation alone.
BufferOptions of_frozen(BufferOptions options) {
  options.trained = false;
  options.slice_bytes = options.whole_bytes;
  options.slice_has_type_of_whole = true;
  return options;
}

/// The same for bytes.
BufferOptions of_codes(BufferOptions options) {
  options.whole_bytes = options.gradient_bytes = 1;
  options.gradient_has_type_of_sum = true;
  return of_frozen(options);
}

}  // namespace

std::vector<UnitPlan> plan_units(const RunConfig& config, const models::ModelShape& shape,
                                 const RankPart& part, bool device_is_host) {
  const auto& section = config.parallel;
  auto units = sized_units(part, shape, config);
  if (config.adapter.type != models::AdapterType::none) freeze(config, shape, part, units);
  if (section.units == parallel::Units::model) units = one_a_stage(units);
  auto options = buffer_options(config, part.mesh);
  options.device_is_host = device_is_host;
  std::vector<int64_t> elements;
  for (const auto& [unit, rest, experts] : units) {
    elements.push_back(rest.elements + rest.frozen + experts.elements + experts.frozen);
  }
  const auto offloaded = offloaded_units(elements, section.offload_fraction);
  std::vector<UnitPlan> result;
  for (size_t i = 0; i < units.size(); ++i) {
    options.offloaded = offloaded[i] && offloads_slices(section, device_is_host);
    options.on_drives = offloaded[i] ? config::on_drives(config) : parallel::OnDrives::nothing;
    options.gradients_on_drives = offloaded[i] && config::gradients_on_drives(config);
    result.push_back(std::move(units[i].unit));
    auto& buffers = result.back().buffers;
    const auto shared = of_experts(options, part.mesh);
    const auto& [unit, rest, experts] = units[i];
    if (rest.frozen > 0) buffers.push_back(plan_buffer(rest.frozen, of_frozen(options)));
    if (experts.frozen > 0) buffers.push_back(plan_buffer(experts.frozen, of_frozen(shared)));
    if (rest.codes > 0) buffers.push_back(plan_buffer(rest.codes, of_codes(options)));
    if (experts.codes > 0) buffers.push_back(plan_buffer(experts.codes, of_codes(shared)));
    const auto add_trained = [&](Amount amount, BufferOptions how) {
      if (amount.in_fp8 > 0) {
        how.fp8_weights = true;
        buffers.push_back(plan_buffer(amount.in_fp8, how));
        buffers.back().in_blocks = amount.fp8_in_blocks;
        how.fp8_weights = false;
        amount.elements -= amount.in_fp8, amount.in_blocks -= amount.fp8_in_blocks;
      }
      if (amount.elements == 0) return;
      auto& buffer = buffers.emplace_back(plan_buffer(amount.elements, how));
      if (config.optimizer.type == optim::OptimizerType::muon)
        buffer.in_matrices = amount.in_matrices;
      buffer.in_blocks = amount.in_blocks;
      buffer.summed = amount.summed;
    };
    add_trained(experts, shared);
    add_trained(rest, options);
  }
  return result;
}

}  // namespace tessera::plan
