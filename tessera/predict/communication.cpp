#include "tessera/predict/communication.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "tessera/base/widths.h"
#include "tessera/models/spec.h"
#include "tessera/predict/activations.h"
#include "tessera/predict/states.h"

namespace tessera::predict {
namespace {

using config::RunConfig;
using mesh::AxisName;
using schedule::Kind;

double real(int64_t number) { return static_cast<double>(number); }

/// Bytes of an element of the gradient that the optimizer reads, and sums over other axes'
/// ranks are taken of.
double gradient_bytes(const plan::BufferPlan& buffer) {
  if (buffer.fp8_gradients) return 4;  // sums are taken of its numbers
  return real(buffer.gradient_slice_in_gradient ? buffer.gradient_bytes
                                                : buffer.gradient_slice_bytes);
}

/// Muon's updates travel in bfloat16 (parallel/data/matrices.cpp, train/muon.cpp).
constexpr double kMuonBytes = 2;

bool has_backward(const plan::RankPart& part, const plan::UnitPlan& unit) {
  if (unit.predicts || std::ranges::any_of(unit.buffers, &plan::BufferPlan::trained)) return true;
  for (int64_t i = unit.layers.begin; i < unit.layers.end; ++i) {
    if (part.blocks[static_cast<size_t>(i)].has_graph) return true;
  }
  return false;
}

/// The ranks that share a buffer.
struct Sharing {
  AxisName between = AxisName::dp_replicate, within = AxisName::dp_shard;
  int64_t copies = 1;

  /// Where all of them lie along one axis: traffic of others is not counted (train/memory_and_traffic.cpp).
  std::optional<AxisName> all(const mesh::MeshShape& mesh) const {
    const auto along = mesh::spanning(mesh, std::array{between, within});
    return along.size() == 1 ? std::optional(along.front()) : std::nullopt;
  }
};

Sharing ranks_of(const mesh::MeshShape& mesh, const plan::BufferPlan& buffer) {
  if (!buffer.of_experts) return {.copies = mesh.dp_replicate};
  return {AxisName::expert_replicate, AxisName::expert_shard, mesh.expert_replicate()};
}

/// A sum of gradients of which all ranks get all (parallel/data/fp8_sum.h in 8 bits).
void add_sum(const RunConfig& config, double elements, double bytes, double times,
             Traffic& traffic) {
  if (config.precision.sends_fp8()) {
    traffic.all_to_all += times * elements;
    traffic.all_gather += times * elements;
  } else {
    traffic.all_reduce += times * elements * bytes;
  }
}

void add_data(const RunConfig& config, const plan::RankPart& part,
              const std::vector<plan::UnitPlan>& units, Communication& moved) {
  // A pipeline's gradients are reduced once, whatever the placement.
  const bool each = part.mesh.pp == 1 && config::reduces_each(config);
  const double reductions = each ? real(part.num_micro_batches) : 1;
  for (size_t i = 0; i < units.size(); ++i) {
    for (const auto& buffer : units[i].buffers) {
      const auto sharing = ranks_of(part.mesh, buffer);
      auto& between_copies = moved.along(sharing.between);
      auto& within_one = moved.along(sharing.within);
      const auto elements = real(buffer.elements);
      // What is frozen has no gradient, and where it stays whole it is gathered once for all steps.
      const double gradient = buffer.trained ? elements * real(buffer.gradient_bytes) : 0;
      if (buffer.num_slices == 1) {
        const auto axis = sharing.all(part.mesh);
        if (!buffer.trained || !axis) continue;
        add_sum(config, elements, real(buffer.gradient_bytes), reductions, moved.along(*axis));
        continue;
      }
      if (config.precision.sends_fp8()) {
        within_one.all_to_all += buffer.trained ? reductions * elements : 0;
      } else {
        within_one.reduce_scatter += reductions * gradient;
      }
      within_one.all_gather += real(buffer.in_matrices) * kMuonBytes;
      const double gathers = buffer.keeps_whole || buffer.keeps_codes
                                 ? (buffer.trained ? 1 : 0)
                                 : num_gathers(config, part, units, i);
      within_one.all_gather += gathers * elements * real(buffer.gathered_bytes);
      if (sharing.copies > 1 && buffer.trained) {
        add_sum(config, elements / real(buffer.num_slices), gradient_bytes(buffer),
                /*times=*/1, between_copies);
      }
    }
  }
}

/// Collectives over tp in one micro-batch, counted in full activations.
struct Rounds {
  double sums = 0;        ///< all-reduces, or reduce-scatters
  double gathers = 0;     ///< all-gathers, where positions are divided
  double statistics = 0;  ///< float32 numbers for each token, of norms over divided features
};

/// Each layer has two sums and two gathers in each direction. What is computed again is sent again,
/// but for sums that checkpointing keeps (attention's, selective both), and the last one where no gradient reads it; what
/// is not gathers again what entered.
Rounds of_layers(const RunConfig& config, const plan::RankPart& part) {
  Rounds rounds;
  const double of_attention = config.memory.checkpointing == memory::CheckpointMode::full ? 1 : 0;
  const bool repeats = repeats_feed_forward(config);
  const double summed =
      models::spec_of(part.shape.family).activations(part.shape, part.position_ranks).summed;
  const auto& experts = part.shape.experts;
  // What enters a mixture its router keeps whole; a shared expert gathers it again all the same.
  const bool keeps_whole = experts.num > 0 && experts.shared_ffn_dim == 0;
  for (const auto& stage : part.stages) {
    for (int64_t i = stage.layers.begin; i < stage.layers.end; ++i) {
      const bool checkpointed = is_checkpointed(config.memory, i);
      const double again = of_attention + (repeats_last_product(config, part.shape) ? 1 : 0);
      rounds.sums += repeats && checkpointed ? 4 + again : 4;
      rounds.gathers += keeps_whole && !checkpointed && i >= experts.num_dense_layers ? 5 : 6;
      rounds.statistics += (checkpointed ? 3 : 2) * summed;
    }
  }
  return rounds;
}

/// What ranks that divide matrices send for the parameters of a buffer, a step.
Traffic of_divided(const plan::BufferPlan& buffer, int64_t ranks) {
  return {.all_reduce = real(buffer.summed) / real(buffer.num_slices) * gradient_bytes(buffer),
          .all_gather = real(buffer.in_matrices * ranks) * kMuonBytes};
}

void add_tensor(const RunConfig& config, const plan::RankPart& part,
                const std::vector<plan::UnitPlan>& units, Communication& moved) {
  if (part.mesh.tp == 1) return;
  const bool sequence = part.position_ranks > 1;
  const auto seq_len = real(config.data.seq_len), tokens = real(part.micro_batch) * seq_len;
  const double width = real(part.shape.dim) * real(compute_bytes(config.precision));
  // Under autocast divided regions compute in 16 bits.
  const double inside =
      config.precision.compute == FloatType::fp32 ? width : real(part.shape.dim) * 2;
  const auto layers = of_layers(config, part);
  double sums = layers.sums * inside, gathers = layers.gathers * inside;
  double others = layers.statistics * 4;
  double positions = 0;
  for (const auto& stage : part.stages) {
    if (stage.embeds) {
      sums += width, gathers += width;
      if (models::longest_sequence(part.shape)) positions = seq_len * width;
    }
    if (stage.predicts) {
      sums += inside, gathers += inside;
      // Largest logit, sum of exponentials, the target's logit; of pairs before gradients, too.
      const bool twice = config.preference.loss != train::PreferenceLoss::none;
      others += (twice ? 2 : 1) * 3 * 4;
    }
  }
  const auto micro_batches = real(part.num_micro_batches);
  auto& traffic = moved.along(AxisName::tp);
  traffic.all_reduce += micro_batches * tokens * others;
  (sequence ? traffic.reduce_scatter : traffic.all_reduce) += micro_batches * tokens * sums;
  if (sequence) traffic.all_gather += micro_batches * (tokens * gathers + positions);
  for (const auto& unit : units) {
    for (const auto& buffer : unit.buffers) {
      const int64_t ranks = buffer.of_experts ? part.mesh.expert_tp() : part.mesh.tp;
      auto& along = moved.along(ranks < part.mesh.tp ? AxisName::etp : AxisName::tp);
      if (ranks > 1) along = along + of_divided(buffer, ranks);
    }
  }
}

/// Tokens' rows to their experts and the results back; in the backward the gradients of both, and
/// once more forward where a feed-forward is computed again: selective checkpointing keeps
/// what came. Each time all ranks are told before how many rows come, of each part of the tokens.
Traffic of_experts(const RunConfig& config, const plan::RankPart& part) {
  if (part.mesh.ep == 1) return {};
  const bool repeats = repeats_feed_forward(config);
  double forwards = 0, backwards = 0;
  for (const auto& stage : part.stages) {
    const auto first = std::max(stage.layers.begin, part.shape.experts.num_dense_layers);
    for (int64_t i = first; i < stage.layers.end; ++i) {
      const bool has_graph = part.blocks[static_cast<size_t>(i)].has_graph;
      forwards += repeats && has_graph && is_checkpointed(config.memory, i) ? 2 : 1;
      backwards += has_graph ? 1 : 0;
    }
  }
  const auto& experts = part.shape.experts;
  const double rows = real(part.micro_batch * config.data.seq_len) *
                      models::expert_rows(part.shape) * real(part.shape.dim) *
                      real(compute_bytes(config.precision));
  const auto micro_batches = real(part.num_micro_batches);
  const double counts = real(part.mesh.ep * experts.num * config.moe.overlap_degree);
  return {.all_gather = micro_batches * forwards * counts * kLong,
          .sent = micro_batches * 2 * (forwards + backwards) * rows};
}

Traffic of_pipeline(const RunConfig& config, const plan::RankPart& part,
                    const std::vector<plan::UnitPlan>& units) {
  Traffic traffic;
  const double activation = real(part.micro_batch * config.data.seq_len) *
                            stream_bytes(config.precision, part) * real(part.num_micro_batches);
  for (const auto& stage : part.stages) {
    if (stage.sends_output) traffic.sent += activation;
    if (stage.sends_gradient) traffic.sent += activation;
  }
  for (const auto& unit : units) {
    const auto& buffer = unit.buffers.back();  // what is trained, if anything is
    traffic.all_reduce += real(unit.table) / real(buffer.num_slices) * gradient_bytes(buffer);
  }
  return traffic;
}

/// What routers did, summed over all ranks: once, or where a loss is made of counts before the
/// backward, too (train/balance.cpp). Counted where all ranks lie along one axis.
void add_routers(const RunConfig& config, const plan::RankPart& part, Communication& moved) {
  const auto& experts = part.shape.experts;
  constexpr std::array kAll{AxisName::pp, AxisName::dp_replicate, AxisName::dp_shard, AxisName::tp};
  const auto along = mesh::spanning(part.mesh, kAll);
  if (experts.num == 0 || along.size() != 1) return;
  const int64_t times = train::is_of_counts(config.moe.aux_loss) ? 2 : 1;
  const int64_t routers = std::ssize(part.blocks) - experts.num_dense_layers;
  constexpr int64_t kOthers = 4;  // beside each expert's choices and sum of probabilities
  moved.along(along.front()).all_reduce +=
      real(times * routers * (2 * experts.num + kOthers)) * kDouble;
}

}  // namespace

double num_gathers(const RunConfig& config, const plan::RankPart& part,
                   const std::vector<plan::UnitPlan>& units, size_t unit) {
  const size_t stage = units[unit].stage;
  const bool last = unit + 1 == units.size(),
             goes_back = has_backward(part, units[unit]) && backward_reads(units[unit]);
  const bool reshards = parallel::reshards(config.parallel.reshard_after_forward);
  int64_t gathers = 0, open = 0;
  const schedule::Action* before = nullptr;
  for (const auto& action : part.actions) {
    const auto* previous = std::exchange(before, &action);
    if (static_cast<size_t>(action.stage) != stage) continue;
    if (action.kind == Kind::backward_weight) continue;
    if (action.kind == Kind::forward) {
      if (reshards || open == 0) ++gathers;
      ++open;
      continue;
    }
    --open;
    const bool is_next = previous != nullptr && previous->kind == Kind::forward &&
                         previous->stage == action.stage &&
                         previous->micro_batch == action.micro_batch;
    if (reshards && goes_back && !(last && is_next)) ++gathers;
  }
  return real(gathers);
}

Traffic operator-(const Traffic& after, const Traffic& before) {
  return {.all_reduce = after.all_reduce - before.all_reduce,
          .all_gather = after.all_gather - before.all_gather,
          .reduce_scatter = after.reduce_scatter - before.reduce_scatter,
          .all_to_all = after.all_to_all - before.all_to_all,
          .sent = after.sent - before.sent};
}

Traffic operator+(const Traffic& a, const Traffic& b) {
  return {.all_reduce = a.all_reduce + b.all_reduce,
          .all_gather = a.all_gather + b.all_gather,
          .reduce_scatter = a.reduce_scatter + b.reduce_scatter,
          .all_to_all = a.all_to_all + b.all_to_all,
          .sent = a.sent + b.sent};
}

Traffic Communication::tp() const { return along(AxisName::tp) + along(AxisName::etp); }

Traffic Communication::dp() const {
  return along(AxisName::dp_replicate) + along(AxisName::dp_shard) +
         along(AxisName::expert_replicate) + along(AxisName::expert_shard);
}

Communication operator-(const Communication& after, const Communication& before) {
  Communication difference;
  for (size_t i = 0; i < mesh::kNumAxes; ++i) {
    difference.by_axis[i] = after.by_axis[i] - before.by_axis[i];
  }
  return difference;
}

Communication communication(const RunConfig& config, const plan::RankPlan& rank) {
  const auto& [part, units] = rank;
  Communication moved;
  add_data(config, part, units, moved);
  moved.along(AxisName::ep) = of_experts(config, part);
  add_tensor(config, part, units, moved);
  moved.along(AxisName::pp) = of_pipeline(config, part, units);
  add_routers(config, part, moved);
  return moved;
}

}  // namespace tessera::predict
