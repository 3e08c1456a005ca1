#include "tessera/estimate/step_memory.h"

#include <algorithm>
#include <set>

#include "tessera/base/machine.h"
#include "tessera/estimate/activations.h"

namespace tessera::estimate {
namespace {

using config::ModelShape;
using config::RunConfig;

constexpr double kFloat = 4, kLong = 8;
constexpr double kMiB = 1 << 20;

// On a CPU each channel has two lanes of two slots of 512 KiB for every rank
// (comm/shared_memory.cpp), and the allocator keeps up to an eighth and 32 MiB
// (kernels/cpu/memory.h). On a GPU these are assumptions: NCCL's buffers, and the context of CUDA.
constexpr double kSharedBytesPerRank = 2 * kMiB, kSlackBytes = 32 * kMiB;
constexpr double kNcclBytes = 512 * kMiB, kContextBytes = 512 * kMiB;

/// Which units' passing parameters are in memory, as the engine gathers and frees them
/// (parallel/data/data_parallel.cpp).
class Gathered {
 public:
  Gathered(const std::vector<UnitBytes>& units, const config::ParallelSection& section)
      : units_(units), section_(section) {}

  void need(size_t unit) { whole_.insert(unit); }
  void prefetch(size_t unit) {
    if (unit < units_.size() && static_cast<int64_t>(whole_.size()) < section_.max_gathered_units) {
      whole_.insert(unit);
    }
  }
  void release(size_t unit) { whole_.erase(unit); }

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
  Step(const RunConfig& config, const ModelShape& shape, const std::vector<UnitPlan>& units,
       int64_t rows, const Device& device)
      : config_(config), shape_(shape), units_(units), gathered_(bytes_, config.parallel) {
    const auto micro =
        config.train.micro_batch > 0 ? std::min(config.train.micro_batch, rows) : rows;
    tokens_ = static_cast<double>(micro * config.data.seq_len);
    accumulates_ = micro < rows;
    for (const auto& unit : units) bytes_.push_back(bytes_of(unit, config));
    for (const auto& unit : bytes_) {
      base_.parameters += unit.parameters;
      base_.gathered += unit.kept_whole;
      base_.gradients += unit.kept_gradients;
      base_.optimizer += unit.optimizer;
      slices_ += unit.gradient_slice;
    }
    const auto batch = static_cast<double>(rows * config.data.seq_len) * 2 * kLong;
    const bool rotates = shape.family == config::ModelFamily::llama;
    const auto tables = static_cast<double>(config.data.seq_len * shape.head_dim) * 2 * kFloat;
    base_.activations = batch + (rotates ? tables : 0);
    stream_ = tokens_ * static_cast<double>(stream_bytes(config.precision, shape));
    if (device.widens_products && stream_bytes(config.precision, shape) < 4 * shape.dim)
      widened_ = kFloat;
  }

  std::vector<Moment> phases() {
    note("between steps", {});
    forward();
    loss();
    backward();
    note("optimizer step", {.gradients = slices_});
    return std::move(phases_);
  }

 private:
  struct Extra {
    double gradients = 0, activations = 0, logits = 0;
  };

  void note(const std::string& phase, const Extra& extra) {
    auto moment = base_;
    moment.phase = phase;
    moment.gathered += gathered_.bytes();
    moment.gradients += extra.gradients;
    moment.activations += extra.activations;
    moment.logits += extra.logits;
    const auto found = std::ranges::find(phases_, phase, &Moment::phase);
    if (found == phases_.end()) {
      phases_.push_back(moment);
    } else if (moment.total() > found->total()) {
      *found = moment;
    }
  }

  BlockActivations of_block(int64_t index) const {
    return block_activations(config_, shape_, is_checkpointed(config_.memory, index));
  }

  /// Slices of an earlier micro-batch wait for this one's.
  double earlier_slices() const { return accumulates_ ? slices_ : 0; }

  /// What a product of so many numbers needs beside its result; `added`: to a float32 buffer.
  double widened(double numbers, bool added) const {
    return widened_ == 0 ? 0 : numbers * (widened_ + (added ? 2 : 0));
  }

  /// The backward of a block's last product: the gradient of its input, and of its weight.
  double last_product() const {
    const auto ffn = static_cast<double>(shape_.ffn_dim);
    const double width = stream_ / static_cast<double>(shape_.dim);
    return width * ffn + std::max(widened(tokens_ * ffn, false),
                                  widened(ffn * static_cast<double>(shape_.dim), true));
  }

  void forward() {
    const bool frees = config_.parallel.reshard_after_forward != "false";
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      gathered_.need(unit);
      if (config_.parallel.forward_prefetch) gathered_.prefetch(unit + 1);
      for (int64_t i = 0; i < units_[unit].num_blocks; ++i) {
        kept_ += tokens_ * static_cast<double>(of_block(next_block_++).kept);
      }
      // What a block made and nobody keeps: its last product, and the sum with the residual.
      note("forward", {.gradients = earlier_slices(), .activations = kept_ + 2 * stream_});
      // A tied unit's head is still to come; the last unit's backward is next.
      const bool runs_again = units_[unit].predicts || unit + 1 == units_.size();
      if (frees && !runs_again) gathered_.release(unit);
    }
  }

  void loss() {
    const auto vocab = static_cast<double>(shape_.vocab_size);
    constexpr double kChunkBytes = 32 << 20;  // kernels/linear_cross_entropy.h
    const double rows = std::min(tokens_, std::max(64.0, kChunkBytes / kFloat / vocab));
    const double width = stream_ / tokens_ / static_cast<double>(shape_.dim);
    double logits = rows * vocab * (kFloat + (width < kFloat ? width : 0)) + stream_;
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      if (!units_[unit].predicts) continue;
      head_ = unit;
      // The head's gradient is summed in float32, beside one that is reduced in less.
      if (units_[unit].buffers.front().gradient_bytes < 4)
        logits += vocab * static_cast<double>(shape_.dim) * kFloat;
    }
    // The logits' product, and that of their gradient with the hidden states.
    logits += widened(std::max(rows, static_cast<double>(shape_.dim)) * vocab, /*added=*/true);
    note("loss", {.gradients = earlier_slices() + bytes_[head_].passing_gradients,
                  .activations = kept_ + 2 * stream_,
                  .logits = logits});
  }

  /// Unit by unit: its whole gradient, that of the unit before it on its way to the slices, and the
  /// slices of all before those.
  void backward() {
    double slices = earlier_slices(), reduced = 0;
    for (size_t unit = units_.size(); unit-- > 0;) {
      gathered_.need(unit);
      if (config_.parallel.backward_prefetch == "pre" && unit > 0) gathered_.prefetch(unit - 1);
      double gradients = slices + bytes_[unit].passing_gradients + reduced;
      if (head_ < unit) gradients += bytes_[head_].passing_gradients;  // tied: reduced at the end
      for (int64_t i = 0; i < units_[unit].num_blocks; ++i) {
        const auto block = of_block(--next_block_);
        note("backward", {.gradients = gradients,
                          .activations = kept_ + tokens_ * static_cast<double>(block.working) +
                                         std::max(tokens_ * static_cast<double>(block.inside),
                                                  last_product())});
        kept_ -= tokens_ * static_cast<double>(block.kept);
      }
      note("backward", {.gradients = gradients, .activations = kept_ + 2 * stream_});
      gathered_.release(unit);
      if (!accumulates_) slices += bytes_[unit].gradient_slice;
      reduced = bytes_[unit].passing_gradients;
    }
  }

  const RunConfig& config_;
  const ModelShape& shape_;
  const std::vector<UnitPlan>& units_;
  std::vector<UnitBytes> bytes_;
  Gathered gathered_;
  Moment base_;
  std::vector<Moment> phases_;
  double tokens_ = 0, stream_ = 0, slices_ = 0, kept_ = 0, widened_ = 0;
  bool accumulates_ = false;
  int64_t next_block_ = 0;
  size_t head_ = 0;
};

}  // namespace

Device this_cpu() {
  const auto isa = this_machine().isa;
  return {.is_host = true, .widens_products = std::ranges::count(isa, "avx512_bf16") == 0};
}

const Moment& StepMemory::peak() const {
  return *std::ranges::max_element(phases, {}, &Moment::total);
}

StepMemory step_memory(const RunConfig& config, const ModelShape& shape,
                       const std::vector<UnitPlan>& units, int64_t rows, const Device& device) {
  StepMemory memory{.phases = Step(config, shape, units, rows, device).phases()};
  const auto ranks = static_cast<double>(config.parallel.num_ranks);
  const double channels = config.parallel.placement == "replicate" ? 1 : 2;
  memory.communication = ranks == 1       ? 0
                         : device.is_host ? channels * kSharedBytesPerRank * ranks
                                          : kNcclBytes;
  memory.slack = memory.peak().total() / 8 + (device.is_host ? kSlackBytes : kContextBytes);
  return memory;
}

}  // namespace tessera::estimate
