#include "tessera/plan/units.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/models/spec.h"

namespace tessera::plan {
namespace {

using config::RunConfig;
using models::Division;

template <typename Counts>
int64_t count_elements(const std::vector<models::ParameterSpec>& parameters, const Counts& counts) {
  int64_t elements = 0;
  for (const auto& parameter : parameters) {
    if (counts(parameter)) elements += parameter.num_elements();
  }
  return elements;
}

int64_t num_elements(const std::vector<models::ParameterSpec>& parameters) {
  return count_elements(parameters, [](const auto&) { return true; });
}

int64_t num_elements(const std::vector<models::ParameterSpec>& parameters, Division division) {
  return count_elements(parameters, [&](const auto& spec) { return spec.division == division; });
}

/// How many of a block's parameters have gradients that ranks of tp sum: norms and biases of width
/// D, where positions are divided; norms of heads; key heads that several ranks have
/// (docs/tensor_parallel.md).
int64_t summed_in_block(const RankPart& part, const models::ParameterSpecs& parameters) {
  if (part.mesh.tp == 1) return 0;
  int64_t summed = num_elements(parameters.block, Division::per_head);
  if (part.position_ranks > 1) summed += num_elements(parameters.block, Division::per_position);
  if (part.key_copies > 1) summed += num_elements(parameters.block, Division::key_heads);
  return summed;
}

/// A unit without buffers, and how much they are to hold.
struct Sized {
  UnitPlan unit;
  int64_t elements = 0;
  int64_t in_matrices = 0;  // of transformer blocks
  int64_t in_blocks = 0;    // whose states the optimizer keeps in 8 bits
  int64_t frozen = 0;       // elements beside these
  int64_t codes = 0;        // bytes of quantised weights, which are not trained
};

/// What an adapter leaves of a unit to train.
struct TrainedPart {
  int64_t elements = 0, of_model = 0, in_matrices = 0, in_blocks = 0, summed = 0;
};

/// Elements of `parts`, what a rank has of parameters other than embeddings, whose states the
/// optimizer keeps in 8 bits: the size of the whole ones decides.
int64_t in_blocks(optim::OptimizerType type, const std::vector<models::ParameterSpec>& whole,
                  const std::vector<models::ParameterSpec>& parts) {
  int64_t elements = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto treatment = optim::treatment_of(type, {.num_elements = whole[i].num_elements()});
    if (treatment == optim::Treatment::blocks) elements += parts[i].num_elements();
  }
  return elements;
}

TrainedPart trained_part(const std::vector<models::TrainedParameter>& whole,
                         const std::vector<models::TrainedParameter>& trained, const RankPart& part,
                         optim::OptimizerType type, const auto& is_in_unit) {
  TrainedPart result;
  for (size_t i = 0; i < trained.size(); ++i) {
    const auto& parameter = trained[i];
    if (!is_in_unit(parameter)) continue;
    const auto elements = parameter.num_elements();
    const auto treatment =
        optim::treatment_of(type, {.of_embedding = parameter.of_embedding && !parameter.of_adapter,
                                   .num_elements = whole[i].num_elements()});
    if (treatment == optim::Treatment::blocks) result.in_blocks += elements;
    result.elements += elements;
    if (!parameter.of_adapter) result.of_model += elements;
    if (parameter.layer && parameter.shape.size() == 2) result.in_matrices += elements;
    if (part.mesh.tp == 1) continue;
    const auto division = parameter.division;
    if (division == Division::per_head ||
        (division == Division::per_position && part.position_ranks > 1) ||
        (division == Division::key_heads && part.key_copies > 1)) {
      result.summed += elements;
    }
  }
  return result;
}

/// Divides each unit into what the adapter trains and the rest, which is frozen.
void freeze(const RunConfig& config, const models::ModelShape& shape, const RankPart& part,
            std::vector<Sized>& units) {
  auto sized = part.shape;
  sized.num_layers = shape.num_layers;
  const auto whole = models::trained_parameters(config.adapter, shape);
  const auto trained = models::trained_parameters(config.adapter, shape, sized);
  for (auto& [unit, elements, in_matrices, blocks, frozen, codes] : units) {
    const bool embeds = unit.name == "embedding";
    const auto is_in_unit = [&, begin = unit.layers.begin, end = unit.layers.end,
                             predicts = unit.predicts](const models::TrainedParameter& p) {
      if (p.layer) return *p.layer >= begin && *p.layer < end;
      return p.of_embedding ? embeds : predicts;
    };
    const auto rest = trained_part(whole, trained, part, config.optimizer.type, is_in_unit);
    frozen = elements - rest.of_model;
    elements = rest.elements;
    in_matrices = rest.in_matrices;
    blocks = rest.in_blocks;
    unit.summed = rest.summed;
    if (rest.of_model == 0) unit.table = 0;
  }
}

/// Bytes of a block's matrices as model.weights keeps them.
int64_t bytes_of_codes(const config::ModelSection& model, const models::ModelShape& shape,
                       const models::ParameterSpecs& specs) {
  if (shape.experts.num > 0) {
    user_error("model.weights: expected as_stored for a model with experts, got {}",
               text_of(model.weights));
  }
  int64_t bytes = 0;
  for (const auto& spec : specs.block) {
    if (spec.shape.size() != 2) continue;
    bytes += quantised_bytes({.format = model.weights,
                              .out = spec.shape[0],
                              .in = spec.shape[1],
                              .block = model.weights_block});
  }
  return bytes;
}

/// The units of a rank: embedding, blocks, and norm with head; or tied, embedding with norm and
/// head, then blocks.
std::vector<Sized> sized_units(const RankPart& part, const models::ModelShape& whole_shape,
                               const RunConfig& config) {
  const auto& shape = part.shape;
  const auto whole = models::spec_of(shape.family).parameters(whole_shape);
  const auto parameters = models::spec_of(shape.family).parameters(shape);
  const auto coded = [&](const auto& all, const auto& parts) {
    return in_blocks(config.optimizer.type, all, parts);
  };
  const int64_t table = shape.vocab_size * shape.dim;
  const int64_t last_norm = num_elements(parameters.head, Division::per_position);
  const bool quantised = config.model.weights != WeightFormat::as_stored;
  const int64_t codes = quantised ? bytes_of_codes(config.model, shape, parameters) : 0;
  const int64_t all_matrices =
      count_elements(parameters.block, [](const auto& spec) { return spec.shape.size() == 2; });
  const int64_t matrices = quantised ? 0 : all_matrices;
  const int64_t block = num_elements(parameters.block) - (all_matrices - matrices);
  const int64_t summed = summed_in_block(part, parameters);
  const int64_t summed_norm = part.position_ranks > 1 ? last_norm : 0;
  const int64_t elsewhere = part.shares_table ? table : 0;
  const bool tied_here = part.has_tied_table();
  std::vector<Sized> units;
  for (size_t stage = 0; stage < part.stages.size(); ++stage) {
    const auto& layers = part.stages[stage].layers;
    const auto at = layers.begin;
    if (part.stages[stage].embeds) {
      units.push_back({{.name = "embedding",
                        .stage = stage,
                        .layers = {at, at},
                        .predicts = tied_here,
                        .summed = tied_here ? summed_norm : 0,
                        .table = elsewhere},
                       num_elements(parameters.embedding) + (tied_here ? last_norm : 0),
                       /*in_matrices=*/0,
                       tied_here ? coded(whole.head, parameters.head) : 0});
    }
    for (int64_t i = at; i < layers.end; ++i) {
      units.push_back({{.name = "layers." + std::to_string(i),
                        .stage = stage,
                        .layers = {i, i + 1},
                        .summed = summed},
                       block,
                       matrices,
                       coded(whole.block, parameters.block),
                       /*frozen=*/0,
                       codes});
    }
    if (part.stages[stage].predicts && !tied_here) {
      units.push_back({{.name = "head",
                        .stage = stage,
                        .layers = {layers.end, layers.end},
                        .predicts = true,
                        .summed = summed_norm,
                        .table = elsewhere},
                       table + last_norm,
                       /*in_matrices=*/0,
                       coded(whole.head, parameters.head)});
    }
  }
  return units;
}

/// Joins all units of a stage into one.
std::vector<Sized> one_a_stage(const std::vector<Sized>& units) {
  std::vector<Sized> result;
  for (const auto& [unit, elements, in_matrices, blocks, frozen, codes] : units) {
    if (result.empty() || result.back().unit.stage != unit.stage) {
      result.push_back({unit, 0});
      result.back().unit.name = "model";
      result.back().unit.summed = result.back().unit.table = 0;
    }
    auto& all = result.back();
    all.elements += elements;
    all.in_matrices += in_matrices;
    all.in_blocks += blocks;
    all.frozen += frozen;
    all.codes += codes;
    all.unit.layers.end = unit.layers.end;
    all.unit.predicts = all.unit.predicts || unit.predicts;
    all.unit.summed += unit.summed;
    all.unit.table += unit.table;
  }
  return result;
}

/// The types of a buffer's elements are those that data_parallel_options (train/) asks for.
BufferOptions buffer_options(const RunConfig& config, const mesh::MeshShape& mesh) {
  const auto& section = config.parallel;
  const auto& precision = config.precision;
  BufferOptions options{.placement = section.placement,
                        .offloads_by_copy = section.offload_optimizer,
                        .in_backward = config.optimizer.in_backward,
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
  std::vector<bool> offloaded(units.size(), false);
  if (section.offload_params || section.offload_optimizer) {
    std::vector<int64_t> elements;
    for (const auto& unit : units) elements.push_back(unit.elements + unit.frozen);
    offloaded = offloaded_units(elements, section.offload_fraction);
  }
  std::vector<UnitPlan> result;
  for (size_t i = 0; i < units.size(); ++i) {
    options.offloaded = offloaded[i];
    result.push_back(std::move(units[i].unit));
    auto& buffers = result.back().buffers;
    if (units[i].frozen > 0) buffers.push_back(plan_buffer(units[i].frozen, of_frozen(options)));
    if (units[i].codes > 0) buffers.push_back(plan_buffer(units[i].codes, of_codes(options)));
    if (units[i].elements == 0) continue;
    buffers.push_back(plan_buffer(units[i].elements, options));
    if (config.optimizer.type == optim::OptimizerType::muon)
      buffers.back().in_matrices = units[i].in_matrices;
    buffers.back().in_blocks = units[i].in_blocks;
  }
  return result;
}

}  // namespace tessera::plan
