#include "tessera/predict/step_memory.h"

#include <algorithm>
#include <set>

#include "tessera/base/loss_chunk.h"
#include "tessera/base/machine.h"
#include "tessera/base/widths.h"
#include "tessera/models/spec.h"
#include "tessera/predict/activations.h"
#include "tessera/predict/states.h"

namespace tessera::predict {
namespace {

using config::RunConfig;

constexpr double kMiB = 1 << 20;

// On a CPU each channel has two lanes of two slots of 256 KiB for every rank
// (comm/shared_memory.h), and the allocator keeps up to an eighth and 32 MiB
// (kernels/cpu/memory.h). On a GPU these are assumptions: NCCL's buffers, and the context of CUDA.
constexpr double kSharedBytesPerRank = kMiB, kSlackBytes = 32 * kMiB;
constexpr double kNcclBytes = 512 * kMiB, kContextBytes = 512 * kMiB;

/// Which units' passing parameters are in memory, as the engine gathers and frees them
/// (parallel/data/engine.cpp).
class Gathered {
 public:
  Gathered(const std::vector<UnitBytes>& units, const config::ParallelSection& section)
      : units_(units), section_(section) {}

  void need(size_t unit) { whole_.insert(unit); }
  void prefetch(size_t unit) {
    if (static_cast<int64_t>(whole_.size()) < section_.max_gathered_units) whole_.insert(unit);
  }
  void release(size_t unit) { whole_.erase(unit); }
  void release_all() { whole_.clear(); }

  double bytes() const {
    double bytes = 0;
    for (const size_t unit : whole_) bytes += units_[unit].passing_whole;
    return bytes;
  }

 private:
  const std::vector<UnitBytes>& units_;
  const config::ParallelSection& section_;
  std::set<size_t> whole_;
};

/// One step, moment by moment.
class Step {
 public:
  Step(const RunConfig& config, const plan::RankPlan& rank, const Device& device)
      : config_(config),
        device_(device),
        part_(rank.part),
        units_(rank.units),
        gathered_(bytes_, config.parallel) {
    const auto& [part, units] = rank;
    const auto& shape = part.shape;
    const auto seq_len = static_cast<double>(config.data.seq_len);
    tokens_ = static_cast<double>(part.micro_batch) * seq_len;
    accumulates_ = part.num_micro_batches > 1 && !pipeline();
    for (const auto& unit : units) bytes_.push_back(unit_bytes(unit, config));
    for (const auto& unit : bytes_) {
      base_.parameters += unit.parameters;
      base_.gathered += unit.kept_whole;
      base_.gradients += unit.kept_gradients;
      base_.optimizer += unit.optimizer;
      if (unit.gradients.count > 0) {
        passing_slice_ = std::max(passing_slice_, unit.gradient_slice);
      } else if (!in_backward()) {
        slices_ += unit.gradient_slice;
      }
      if (pipeline()) waiting_ += unit.passing_gradients;
    }
    base_.gathered += largest_cast(bytes_);
    if (updated_here(bytes_)) base_.optimizer += buffers_for_drives(bytes_, config).bytes();
    for (size_t unit = 0; unit < units.size(); ++unit) {
      if (units[unit].predicts) head_ = unit;
    }
    const auto batch = tokens_ * static_cast<double>(part.num_micro_batches) * 2 * kLong;
    const auto rotary_width = models::spec_of(shape.family).rotary_width(shape);
    base_.activations = batch + seq_len * static_cast<double>(rotary_width) * 2 * kFloat;
    if (device.is_host) base_.activations += buffers_for_activations(config, part);
    width_ = static_cast<double>(compute_bytes(config.precision));
    whole_ = tokens_ * static_cast<double>(shape.dim) * width_;
    own_ = tokens_ * stream_bytes(config.precision, part);
    if (device.is_host && config.precision.matmul != Matmul::as_compute)
      rounded_bytes_ = device.widens_bf16 ? kFloat : 2;
    widens_ = width_ < kFloat && (config.precision.compute == FloatType::fp16 ? device.widens_fp16
                                                                              : device.widens_bf16);
  }

  /// The moments of a step; in each stage the pass that begins with the most.
  std::vector<Moment> phases() {
    note("between steps", {});
    const auto held = in_flight(config_, part_).stages;
    const double on_the_way = arriving_bytes(config_, part_) + crossing_bytes(config_, part_);
    for (size_t stage = 0; stage < held.size(); ++stage) {
      kept_ = on_the_way + held[stage].forward;
      forward(stage);
      if (part_.stages[stage].predicts) loss();
      kept_ = on_the_way + held[stage].backward;
      backward(stage);
    }
    reduce();
    note("optimizer step", {.gradients = slices_ + passing_slice_, .optimizer = muon()});
    return std::move(phases_);
  }

 private:
  struct Extra {
    double gradients = 0, optimizer = 0, activations = 0, logits = 0;
  };

  void note(const std::string& phase, const Extra& extra) {
    auto moment = base_;
    moment.phase = phase;
    moment.gathered += gathered_.bytes();
    moment.gradients += extra.gradients;
    moment.optimizer += extra.optimizer;
    moment.activations += extra.activations;
    moment.logits += extra.logits;
    const auto found = std::ranges::find(phases_, phase, &Moment::phase);
    if (found == phases_.end()) {
      phases_.push_back(moment);
    } else if (moment.total() > found->total()) {
      *found = moment;
    }
  }

  /// What an update of matrices works in, a unit at a time.
  double muon() const {
    if (config_.optimizer.type != optim::OptimizerType::muon) return 0;
    double most = 0;
    for (const auto& unit : units_) {
      const auto shape = models::shape_of_layer(part_.shape, unit.layers.begin);
      const auto& mesh = part_.mesh;  // whose ranks divide matrices that are updated whole
      const int64_t width =
          std::max<int64_t>(shape.ffn_dim * (shape.experts.num > 0 ? mesh.expert_tp() : mesh.tp),
                            shape.num_heads * shape.head_dim * mesh.tp);
      // The matrix and its successor, in float32 where that is multiplied, and two of its products;
      // of a divided one as it came from the ranks.
      const double of_number = (device_.widens_bf16 ? 13 : 8) + (mesh.tp > 1 ? 4 : 0);
      most =
          std::max(most, bytes_of_muon(unit, of_number * static_cast<double>(width * shape.dim)));
    }
    return most;
  }

  BlockActivations of_block(int64_t index) const {
    return block_activations(config_, part_, index);
  }

  bool pipeline() const { return part_.mesh.pp > 1; }
  bool in_backward() const { return config_.optimizer.in_backward; }
  bool divides_positions() const { return part_.position_ranks > 1; }

  /// Bytes of earlier micro-batches' gradients, which wait for this one's: slices, or in a pipeline
  /// whole ones.
  double earlier_gradients() const { return accumulates_ ? slices_ : waiting_; }

  /// Scratch bytes of the product [rows, depth] [depth, columns], without its operands and its
  /// result, whose numbers have `out_bytes`.
  double widened(double rows, double depth, double columns, double out_bytes) const {
    if (!widens_) return 0;
    const auto block = [](double height, double width) {
      constexpr double kWidened = 1024;  // kernels/cpu/matmul.h
      return std::min(height, kWidened) * std::min(width, kWidened) * kFloat;
    };
    return block(rows, depth) + block(depth, columns) +
           (out_bytes < kFloat ? block(rows, columns) : 0);
  }

  /// Scratch bytes of a sum or gather of all positions' numbers over ranks, without its inputs and
  /// its result: they travel rank by rank, not sequence by sequence.
  double rearranged() const { return divides_positions() && part_.micro_batch > 1 ? whole_ : 0; }

  /// Bytes that a block made and nobody keeps: its last product, and the sum with the residual;
  /// where positions are divided, what entered that product's region, too.
  double end_of_block() const {
    return divides_positions() ? 2 * whole_ + std::max(rearranged(), own_) + own_ : 2 * own_;
  }

  /// Bytes of the backward of the last product of a block of `unit`: the gradient of its input, and
  /// of its weight; where positions are divided, after those of all came together. Beside quantised
  /// weights operands and results are in float32 where others are widened block by block.
  double last_product(size_t unit) const {
    const auto shape = models::shape_of_layer(part_.shape, units_[unit].layers.begin);
    const auto ffn = static_cast<double>(shape.ffn_dim), dim = static_cast<double>(shape.dim);
    const bool quantised = config_.model.weights != WeightFormat::as_stored;
    const double scratch = quantised ? (widens_ ? tokens_ * (dim + ffn) * kFloat : 0)
                                     : std::max(widened(tokens_, dim, ffn, width_),
                                                widened(dim, tokens_, ffn, gradient_bytes(unit)));
    const double products =
        rounded_bytes_ > 0 ? rounded_product(unit, dim, ffn) : width_ * tokens_ * ffn + scratch;
    return divides_positions() ? whole_ + std::max(rearranged(), products) : products;
  }

  /// Its bytes where products of 8 bits are emulated (kernels/fp8_linear.cpp): operands are rounded as a whole, to
  /// bfloat16 where that is multiplied as such, and a result of another type is in float32 first.
  double rounded_product(size_t unit, double dim, double ffn) const {
    const double gradient = tokens_ * dim * rounded_bytes_, weight = dim * ffn * rounded_bytes_;
    const bool is_result = width_ == kFloat || (width_ == rounded_bytes_ &&
                                                config_.precision.compute == FloatType::bf16);
    const double of_input = tokens_ * ffn * (width_ + (is_result ? 0 : kFloat)) + gradient + weight;
    const double of_weight = gradient + tokens_ * ffn * rounded_bytes_ +
                             (gradient_bytes(unit) < kFloat ? dim * ffn * kFloat : 0);
    return std::max(of_input, of_weight);
  }

  double gradient_bytes(size_t unit) const {
    return static_cast<double>(units_[unit].buffers.front().gradient_bytes);
  }

  bool is_of(size_t stage, size_t unit) const {
    return unit < units_.size() && units_[unit].stage == stage;
  }

  /// Stages of a pipeline take turns: nothing is left of the pass before but what stays.
  void begin_pass() {
    if (!pipeline()) return;
    gathered_.release_all();
    if (parallel::reshards(config_.parallel.reshard_after_forward)) return;
    for (size_t unit = 0; unit < units_.size(); ++unit) gathered_.need(unit);
  }

  void forward(size_t stage) {
    begin_pass();
    const bool frees = parallel::reshards(config_.parallel.reshard_after_forward);
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      const auto& plan = units_[unit];
      if (plan.stage != stage) continue;
      gathered_.need(unit);
      if (config_.parallel.forward_prefetch && is_of(stage, unit + 1)) gathered_.prefetch(unit + 1);
      // What goes elsewhere does so once the block has run.
      double most = 0;
      for (int64_t i = plan.layers.begin; i < plan.layers.end; ++i) {
        const auto block = of_block(i);
        most = std::max(most, kept_ + tokens_ * block.kept);
        kept_ += tokens_ * block.staying;
      }
      note("forward", {.gradients = earlier_gradients(),
                       .activations = std::max(kept_, most) + end_of_block()});
      // A tied unit's head is still to come; the last unit's backward is next.
      const bool runs_again = plan.predicts || unit + 1 == units_.size();
      if (frees && !runs_again) gathered_.release(unit);
    }
  }

  void loss() {
    const auto vocab = static_cast<double>(part_.shape.vocab_size);
    const auto dim = static_cast<double>(part_.shape.dim);
    const auto rows = static_cast<double>(
        loss_chunk_rows(static_cast<int64_t>(tokens_), part_.shape.vocab_size, !device_.is_host));
    const auto numbers =
        models::spec_of(part_.shape.family).activations(part_.shape, part_.position_ranks);
    double logits =
        rows * vocab * (kFloat * (1 + numbers.of_logits) + (width_ < kFloat ? width_ : 0)) + whole_;
    // The head's gradient is summed in float32, beside one that is reduced in less.
    if (part_.trains_head && gradient_bytes(head_) < kFloat) logits += vocab * dim * kFloat;
    // The logits' product, and those of their gradient with the weight and the hidden states.
    logits += std::max({widened(rows, dim, vocab, kFloat), widened(rows, vocab, dim, width_),
                        widened(vocab, rows, dim, kFloat)});
    gathered_.need(head_);
    const double gradient = pipeline() ? 0 : bytes_[head_].passing_gradients;
    note("loss", {.gradients = earlier_gradients() + gradient,
                  .activations = kept_ + own_ + whole_,
                  .logits = logits});
  }

  /// Unit by unit: its whole gradient, that of the unit before it on its way to the slices, and the
  /// slices of all before those.
  void backward(size_t stage) {
    begin_pass();
    // What is between the last block and the head is done with first.
    const bool predicts = part_.stages[stage].predicts;
    if (predicts) kept_ -= tokens_ * kept_by_head(config_, part_);
    const double beside = predicts ? own_ + whole_ : 2 * own_;
    double slices = earlier_gradients() + passing_slice_, reduced = 0;
    for (size_t unit = units_.size(); unit-- > 0;) {
      const auto& plan = units_[unit];
      if (plan.stage != stage) continue;
      if (backward_reads(plan)) gathered_.need(unit);
      if (config_.parallel.backward_prefetch == parallel::BackwardPrefetch::pre &&
          is_of(stage, unit - 1) && backward_reads(units_[unit - 1])) {
        gathered_.prefetch(unit - 1);
      }
      double gradients = slices + reduced;
      if (!pipeline()) {
        gradients += bytes_[unit].passing_gradients;
        if (head_ < unit) gradients += bytes_[head_].passing_gradients;  // tied: reduced at the end
      }
      for (int64_t i = plan.layers.end; i-- > plan.layers.begin;) {
        const auto block = of_block(i);
        kept_ += tokens_ * block.away;  // comes back
        note("backward", {.gradients = gradients,
                          .activations = kept_ + tokens_ * block.working +
                                         std::max(tokens_ * block.inside, last_product(unit))});
        kept_ -= tokens_ * (block.staying + block.away);
        if (part_.stages[stage].splits_backward) kept_ += tokens_ * block.deferred;
      }
      const bool stays = !in_backward() && bytes_[unit].gradients.count == 0;
      const double slice = pipeline() || accumulates_ || !stays ? 0 : bytes_[unit].gradient_slice;
      // Its reduction begins, while that of the unit before may still go on.
      const double begun = bytes_[unit].slice_comes_last ? 0 : slice;
      note("backward", {.gradients = gradients + begun, .activations = kept_ + beside});
      gathered_.release(unit);
      if (pipeline()) continue;
      reduced = gradients_on_the_way(bytes_[unit], stays ? 0 : part_.mesh.data_ranks());
      slices += slice;
    }
  }

  /// A pipeline's gradients, once those of all micro-batches are there: unit by unit from whole
  /// ones to slices.
  void reduce() {
    if (!pipeline()) return;
    gathered_.release_all();
    double slice = 0;
    for (const auto& unit : bytes_) slice = std::max({slice, unit.gradient_slice, unit.leaving});
    note("backward", {.gradients = waiting_ + slice});
  }

  const RunConfig& config_;
  Device device_;
  const plan::RankPart& part_;
  const std::vector<plan::UnitPlan>& units_;
  std::vector<UnitBytes> bytes_;
  Gathered gathered_;
  Moment base_;
  std::vector<Moment> phases_;
  /// Tokens of a micro-batch and bytes of a number; bytes of an activation of all positions and of
  /// this rank's; of gradients' slices, and of whole ones that wait for the last micro-batch.
  double tokens_ = 0, width_ = 0, whole_ = 0, own_ = 0, slices_ = 0, waiting_ = 0;
  double passing_slice_ = 0;  // the largest of those that go to drives
  double kept_ = 0;
  double rounded_bytes_ = 0;  // of a number rounded to 8 bits, where products of them are emulated
  bool accumulates_ = false, widens_ = false;
  size_t head_ = 0;
};

/// Groups of ranks have channels of their own, where parameters are divided one for them and one
/// for gradients. What all agree on has another, unless an axis has all ranks.
double communication_bytes(const plan::RankPart& part, const Device& device) {
  const auto& mesh = part.mesh;
  const int64_t data = mesh.data_ranks(), ranks = mesh.pp * data * mesh.tp;
  if (ranks == 1) return 0;
  if (!device.is_host) return kNcclBytes;
  const auto group = [](int64_t size) { return size > 1 ? size : 0; };
  // A pipeline's channels, one to each peer and one back, use one of two lanes.
  int64_t slots = group(mesh.tp) + 2 * part.num_peers;
  if (part.key_copies < mesh.tp) slots += group(part.key_copies);
  const auto sharing = [&](int64_t replicate, int64_t shard) {
    slots += 2 * group(shard) + group(replicate);
    if (shard > 1 && replicate > 1) slots += shard * replicate;
  };
  sharing(mesh.dp_replicate, mesh.dp_shard);
  if (mesh.experts_apart()) {
    slots += group(mesh.ep);
    sharing(mesh.expert_replicate(), mesh.expert_shard());
  }
  if (mesh.expert_tp() < mesh.tp) slots += group(mesh.expert_tp());
  // Norms of gradients are summed over the ranks that share a copy of the model's stages.
  const int64_t holders = std::max(mesh.dp_shard, mesh.ep_of_data()), copy = mesh.tp * holders;
  const auto is_new = [&](int64_t size) {
    return mesh.tp < size && holders < size && mesh.ep < size;
  };
  if (is_new(copy) && copy < ranks) slots += copy;
  if (data < ranks && mesh.tp < ranks) slots += ranks;
  return static_cast<double>(slots) * kSharedBytesPerRank;
}

}  // namespace

Device this_cpu() {
  const auto isa = this_machine().isa;
  const bool bf16 = std::ranges::count(isa, kBf16Instructions) > 0;
  return {.is_host = true, .widens_bf16 = !bf16, .widens_fp16 = true};  // kernels/cpu/matmul.h
}

const Moment& StepMemory::peak() const {
  return *std::ranges::max_element(phases, {}, &Moment::total);
}

StepMemory step_memory(const RunConfig& config, const plan::RankPlan& rank, const Device& device) {
  StepMemory memory{.phases = Step(config, rank, device).phases()};
  memory.communication = communication_bytes(rank.part, device);
  memory.slack = memory.peak().total() / 8 + (device.is_host ? kSlackBytes : kContextBytes);
  return memory;
}

}  // namespace tessera::predict
