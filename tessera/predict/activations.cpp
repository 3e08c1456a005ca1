#include "tessera/predict/activations.h"

#include <algorithm>

#include "tessera/base/widths.h"
#include "tessera/config/needs.h"
#include "tessera/models/spec.h"

namespace tessera::predict {
namespace {

using config::RunConfig;
using models::Numbers;
using schedule::Kind;

double bytes_of(const Numbers& numbers, double width) {
  return numbers.values * width + numbers.floats * kFloat;
}

/// Peak count of numbers, for each token, that the feed-forward's backward allocates on top of what
/// was alive when it began: gradients of the activation function's inputs; of what enters, one of
/// each product; on more ranks, while that is summed over them, what gradients of weights need.
/// `kept`: numbers as wide as its inside that were alive and go on the way.
double inside_feed_forward(const RunConfig& config, const plan::RankPart& part, double ffn_dim,
                           const models::ActivationNumbers& numbers, double kept,
                           bool checkpointed) {
  const double products = numbers.products;
  const auto dim = static_cast<double>(part.shape.dim), f = ffn_dim;
  const bool keeps_results =
      checkpointed && config.memory.checkpointing == memory::CheckpointMode::selective;
  // What was inside is free by then, but for results that selective checkpointing keeps.
  const double freed = keeps_results ? (kept - products) * f : kept * f;
  const double waiting = (part.mesh.tp > 1 ? products : 1) * f - freed;
  // The gradient of the last product's input takes the place of that, if it was kept.
  const double inputs = (products + 1) * f - (kept - products) * f;
  const double entering = numbers.sums_in_norms ? products - 1 : products;
  double most = std::max(inputs, entering * dim + waiting);
  if (part.position_ranks == 1) return most;
  const double own = dim / static_cast<double>(part.position_ranks);
  // Several sequences are rearranged, before they are summed and after they were gathered.
  const double rearranged = part.micro_batch > 1 ? dim : 0;
  const double gathered = checkpointed ? 0 : dim;
  most = std::max(most, products * dim + gathered + waiting);
  return std::max(most, dim + own + gathered + rearranged + waiting);
}

/// Is block `index` the first of a stage whose input comes from another one? The pipeline holds that, too.
bool has_held_input(const plan::RankPart& part, int64_t index) {
  return std::ranges::any_of(
      part.stages, [&](const auto& stage) { return !stage.embeds && stage.layers.begin == index; });
}

/// What a token has besides where experts are shared out (parallel/expert/dispatch.cpp): in `floats`
/// where its rows are among those that came, int64; in `values`, which selective checkpointing keeps,
/// its rows as they came and as they came back.
Numbers of_exchange(const models::ModelShape& shape, const mesh::MeshShape& mesh) {
  if (mesh.ep == 1) return {};
  const double k = models::expert_rows(shape);
  return {.values = 2 * k * static_cast<double>(shape.dim), .floats = 2 * k * kLong / kFloat};
}

/// Bytes kept, without checkpoints, of what enters a feed-forward, of which a rank has `stream` bytes.
/// A router keeps all positions, a shared expert this rank's.
double kept_before(const plan::RankPart& part, const models::ModelShape& shape, double stream) {
  if (shape.experts.num == 0 || part.position_ranks == 1) return stream;
  const double whole = stream * static_cast<double>(part.position_ranks);
  return whole + (shape.experts.shared_ffn_dim > 0 ? stream : 0);
}

}  // namespace

bool is_checkpointed(const config::MemorySection& section, int64_t index) {
  return section.checkpointing != memory::CheckpointMode::none &&
         index % section.checkpoint_every == 0;
}

bool repeats_feed_forward(const config::RunConfig& config) {
  return config.memory.checkpointing == memory::CheckpointMode::full ||
         config.memory.checkpointing == memory::CheckpointMode::feed_forward;
}

bool repeats_last_product(const config::RunConfig& config, const models::ModelShape& shape) {
  return !models::ends_with_product(shape) || config.adapter.type == models::AdapterType::dora;
}

/// Under autocast some numbers are in 16 bits and some in float32: counted as if all were in
/// float32.
int64_t compute_bytes(const config::PrecisionSection& precision) {
  return precision.compute == FloatType::fp32 || precision.autocast ? 4 : 2;
}

double stream_bytes(const config::PrecisionSection& precision, const plan::RankPart& part) {
  return static_cast<double>(part.shape.dim * compute_bytes(precision)) /
         static_cast<double>(part.position_ranks);
}

namespace {

/// A block's activations as if nothing that is kept were freed early.
BlockActivations all_staying(const RunConfig& config, const plan::RankPart& part, int64_t index) {
  const auto& trained = part.blocks[static_cast<size_t>(index)];
  const bool checkpointed = is_checkpointed(config.memory, index);
  const auto width = static_cast<double>(compute_bytes(config.precision));
  const auto shape = models::shape_of_layer(part.shape, index);
  const auto numbers = models::spec_of(shape.family).activations(shape, part.position_ranks);
  const double stream = stream_bytes(config.precision, part);
  const auto dim = static_cast<double>(shape.dim), ffn = static_cast<double>(shape.ffn_dim);
  // Rows of the feed-forward that a token has: one for each of its experts.
  const bool has_experts = shape.experts.num > 0;
  const double rows = has_experts ? models::expert_rows(shape) : 1;
  // What enters the two divided regions, of all positions, where a gradient reads it; without
  // checkpoints this rank's are kept, the others gathered again.
  const double attention = trained.attention ? 1 : 0, feed_forward = trained.feed_forward ? 1 : 0;
  const double entering = (attention + feed_forward) * dim * width;
  const double kept_of_entering =
      checkpointed ? entering
                   : attention * stream + feed_forward * kept_before(part, shape, stream);
  const double unread = (trained.last_product ? 0 : rows * ffn * width) +
                        (trained.expert_rows || !has_experts ? 0 : rows * dim * width);
  const double of_adapters = trained.adapter_numbers * width;
  const auto exchange = of_exchange(shape, part.mesh);
  double all = bytes_of(numbers.kept, width) + exchange.floats * kFloat + kept_of_entering -
               unread + of_adapters;
  // Its first norm keeps the input for that one's gradient.
  const bool norms_input = !models::spec_of(part.shape.family).norms_results;
  if (!checkpointed && !trained.input_graph && norms_input) all -= stream;
  BlockActivations result{
      .kept = all,
      .inside =
          inside_feed_forward(config, part, ffn, numbers,
                              numbers.products + (trained.last_product ? 1 : 0), checkpointed) *
          rows * width,
      .deferred = numbers.deferred * width + kept_of_entering};
  if (!trained.has_graph) return {};
  result.working = stream;  // the gradient of the block's output
  if (!checkpointed) return result;
  if (repeats_last_product(config, part.shape)) result.working += stream;  // that output
  if (config.memory.checkpointing == memory::CheckpointMode::full) {
    result.kept = stream;
    result.working += all - stream;
    return result;
  }
  const double to_attention = bytes_of(numbers.to_attention, width);
  double of_feed_forward =
      bytes_of(numbers.selective, width) + exchange.values * width - to_attention;
  if (has_experts && part.mesh.tp > 1) of_feed_forward += stream;  // the sum over ranks
  // DoRA reads what the last product gives (train/assemble.cpp), as a norm does.
  if (config.adapter.type == models::AdapterType::dora && norms_input) of_feed_forward += stream;
  result.working += bytes_of(numbers.recomputed, width) + exchange.floats * kFloat + entering -
                    unread + of_adapters + static_cast<double>(part.shape.num_heads) * kFloat;
  const bool again = config.memory.checkpointing == memory::CheckpointMode::feed_forward;
  result.kept = to_attention + (again ? 0 : of_feed_forward);
  if (again) result.working += of_feed_forward;
  return result;
}

}  // namespace

BlockActivations block_activations(const RunConfig& config, const plan::RankPart& part,
                                   int64_t index) {
  auto result = all_staying(config, part, index);
  result.staying = result.kept;
  const bool offloads = config.memory.offload_activations != memory::OffloadActivations::none;
  if (!offloads || !is_checkpointed(config.memory, index) || result.kept == 0) return result;
  // An input without a gradient is nobody's activation.
  const double stream = stream_bytes(config.precision, part);
  const bool input_goes = part.blocks[static_cast<size_t>(index)].input_graph;
  result.away = result.kept - (input_goes ? 0 : stream);
  result.staying -= result.away;
  if (input_goes && has_held_input(part, index)) result.staying += stream;
  return result;
}

double kept_by_blocks(const RunConfig& config, const plan::RankPart& part,
                      const plan::RankPart::Stage& stage) {
  double bytes = 0;
  for (int64_t i = stage.layers.begin; i < stage.layers.end; ++i) {
    bytes += block_activations(config, part, i).staying;
  }
  return bytes;
}

double crossing_bytes(const RunConfig& config, const plan::RankPart& part) {
  if (config.memory.offload_activations != memory::OffloadActivations::host) return 0;
  double away = 0;
  for (const auto& stage : part.stages) {
    for (int64_t i = stage.layers.begin; i < stage.layers.end; ++i)
      away = std::max(away, block_activations(config, part, i).away);
  }
  // In a pipeline the newest micro-batch's last block stays while an older one's come back.
  const double blocks = part.mesh.pp > 1 ? 2 : 1;
  return blocks * static_cast<double>(part.micro_batch * config.data.seq_len) * away;
}

double buffers_for_activations(const RunConfig& config, const plan::RankPart& part) {
  if (!config::activations_on_drives(config)) return 0;
  return std::min(in_flight(config, part).away,
                  static_cast<double>(config::part_of_host_memory(config)));
}

// What is kept for the head: the last block's output on this rank's positions, the gradient of what
// enters the head on all positions, and the last norm's statistics.
double kept_by_head(const RunConfig& config, const plan::RankPart& part) {
  // One statistic for each vector that the last norm has.
  double last_norm = 0;
  for (const auto& parameter : models::spec_of(part.shape.family).parameters(part.shape).head) {
    if (parameter.division == models::Division::per_position) last_norm += kFloat;
  }
  return stream_bytes(config.precision, part) +
         static_cast<double>(part.shape.dim * compute_bytes(config.precision)) +
         last_norm / static_cast<double>(part.position_ranks);
}

double arriving_bytes(const RunConfig& config, const plan::RankPart& part) {
  constexpr int64_t kAhead = 2;
  const int64_t messages = part.num_peers * std::min(kAhead, part.num_micro_batches);
  return static_cast<double>(messages * part.micro_batch * config.data.seq_len) *
         stream_bytes(config.precision, part);
}

InFlight in_flight(const RunConfig& config, const plan::RankPart& part) {
  const auto tokens = static_cast<double>(part.micro_batch * config.data.seq_len);
  std::vector<double> kept, deferred, output, going;
  for (const auto& stage : part.stages) {
    kept.push_back(tokens * (kept_by_blocks(config, part, stage) +
                             (stage.predicts ? kept_by_head(config, part) : 0)));
    double put_off = 0, away = 0;
    for (int64_t i = stage.layers.begin; i < stage.layers.end; ++i) {
      const auto block = block_activations(config, part, i);
      put_off += block.deferred, away += block.away;
    }
    deferred.push_back(tokens * put_off);
    going.push_back(tokens * away);
    output.push_back(stage.predicts ? 0 : tokens * stream_bytes(config.precision, part));
  }
  InFlight result{.stages = std::vector<Held>(part.stages.size())};
  double held = 0, micro_batches = 0, away = 0;
  for (const auto& action : part.actions) {
    const auto stage = static_cast<size_t>(action.stage);
    auto& most = result.stages[stage];
    switch (action.kind) {
      case Kind::forward:
        most.forward = std::max(most.forward, held);
        held += kept[stage], micro_batches += 1;
        result.bytes = std::max(result.bytes, held + output[stage]);
        result.micro_batches = std::max(result.micro_batches, micro_batches);
        away += going[stage], result.away = std::max(result.away, away);
        break;
      case Kind::backward:
        most.backward = std::max(most.backward, held);
        held -= kept[stage], micro_batches -= 1, away -= going[stage];
        break;
      case Kind::backward_input:
        most.backward = std::max(most.backward, held);
        away -= going[stage];
        held += deferred[stage] - kept[stage], micro_batches -= 1 - part.kept_for_weight;
        break;
      case Kind::backward_weight:
        held -= deferred[stage], micro_batches -= part.kept_for_weight;
    }
  }
  result.bytes += arriving_bytes(config, part) + crossing_bytes(config, part);
  return result;
}

int64_t kept_activation_bytes(const RunConfig& config, const plan::RankPart& part) {
  return static_cast<int64_t>(in_flight(config, part).bytes);
}

}  // namespace tessera::predict
