#include "tessera/predict/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <utility>

#include "tessera/base/units.h"
#include "tessera/config/needs.h"
#include "tessera/predict/states.h"

namespace tessera::predict {
namespace {

constexpr double kGb = 1e9;

/// What drives do ahead of those who ask for it, in seconds of theirs; no more than buffers hold.
struct Ahead {
  double seconds = 0, most = 0;
  double lost = 0;  ///< share of a rank's computing, while they do

  double fill(double room) {
    const double taken = std::clamp(most - seconds, 0.0, room);
    seconds += taken;
    return taken;
  }
};

/// A rank and its drives, side by side.
class Timeline {
 public:
  /// The first ones are served first.
  explicit Timeline(std::vector<Ahead*> ahead) : ahead_(std::move(ahead)) {}

  /// The rank computes, longer for what it loses to drives meanwhile.
  void compute(double seconds) {
    constexpr double kNothing = 1e-9;
    for (; seconds > kNothing; seconds = go_on(seconds)) {
      now_ += seconds;
      computed_ += seconds;
    }
  }

  /// It needs what takes the drives so long, and computes meanwhile.
  void need(Ahead& of, double transfer, double computing = 0) {
    const double elapsed = std::max(computing, transfer - of.seconds);
    moved_ += transfer;
    now_ += elapsed;
    computed_ += computing;
    const double left = elapsed - std::max(0.0, transfer - of.seconds);
    of.seconds = std::max(0.0, of.seconds - transfer);
    go_on(left);  // what it loses is left out: an update is short beside its transfers
  }

  /// Written behind by the drives: they do the rest later.
  void write(Ahead& of, double transfer) {
    moved_ += transfer;
    of.seconds -= transfer;
  }

  /// Since it was asked last.
  StepTime time() {
    return {.seconds = std::exchange(now_, 0),
            .compute_seconds = std::exchange(computed_, 0),
            .transfer_seconds = std::exchange(moved_, 0)};
  }

 private:
  /// Gives the seconds of computing that are lost to it.
  double go_on(double seconds) {
    double lost = 0;
    for (auto* ahead : ahead_) {
      const double busy = ahead->fill(seconds);
      seconds -= busy;
      lost += busy * ahead->lost;
    }
    return lost;
  }

  std::vector<Ahead*> ahead_;
  double now_ = 0, computed_ = 0, moved_ = 0;
};

/// What each unit has on drives, as a whole: those used last are in memory, others are read.
class Regions {
 public:
  Regions() = default;
  Regions(std::vector<double> bytes, double memory, double gb_a_second) : bytes_(std::move(bytes)) {
    const double largest = std::ranges::max(bytes_);
    if (largest == 0) return;
    count_ = static_cast<size_t>(std::lround(memory / largest));
    seconds_of_byte_ = 1 / kGb / gb_a_second;
    const double mean =
        std::accumulate(bytes_.begin(), bytes_.end(), 0.0) / static_cast<double>(bytes_.size());
    ahead.most = (static_cast<double>(count_) - 2) * mean * seconds_of_byte_;
  }

  Ahead ahead;

  /// Seconds of reading a unit's, 0 if it is there.
  double use(size_t unit) {
    if (bytes_[unit] == 0) return 0;
    const auto found = std::ranges::find(kept_, unit);
    const bool there = found != kept_.end();
    if (there) kept_.erase(found);
    kept_.push_back(unit);
    if (kept_.size() > count_) kept_.pop_front();
    return there ? 0 : bytes_[unit] * seconds_of_byte_;
  }

 private:
  std::vector<double> bytes_;
  double seconds_of_byte_ = 0;
  size_t count_ = 0;
  std::deque<size_t> kept_;
};

struct UnitTime {
  double forward = 0, backward = 0, update = 0;  // computing
  // On drives: states are read and written.
  double states = 0, slice_write = 0, gradient_write = 0;
  double activations_write = 0, activations_read = 0;
  bool backward_reads = true, trained = false;
  bool updates_slice = false;  // itself, which comes for that
};

/// What a write takes beside what is read: as much of it goes on at once as was measured of both, where there is something
/// to read, which is taken to be half of the time.
double share_of_write(const DriveSpeed& speed) {
  const double apart = 1 / speed.read + 1 / speed.write;
  return std::clamp(1 / speed.both / apart, 0.5, 1.0);
}

/// The forward's share of a forward and backward: the backward has two products for each of the forward's, and those that
/// run again; two thirds are a feed-forward's.
double share_of_forward(const config::RunConfig& config) {
  switch (config.memory.checkpointing) {
    case memory::CheckpointMode::full:
      return 1.0 / 4;
    case memory::CheckpointMode::feed_forward:
      return 3.0 / 11;
    case memory::CheckpointMode::selective:
    case memory::CheckpointMode::none:
      return 1.0 / 3;
  }
  __builtin_unreachable();
}

class StepRun {
 public:
  StepRun(const config::RunConfig& config, const plan::RankPlan& rank, const DriveTraffic& traffic,
          const DriveSpeed& speed, const ComputeSpeed& computing)
      : config_(config), rank_(rank) {
    std::vector<UnitBytes> units;
    std::vector<double> slices, gradients;
    for (size_t i = 0; i < rank.units.size(); ++i) {
      const auto& bytes = units.emplace_back(unit_bytes(rank.units[i], config));
      slices.push_back(bytes.slices.bytes);
      gradients.push_back(bytes.gradients.bytes);
      units_.push_back(unit_time(i, bytes, speed, computing));
    }
    const auto buffers = buffers_for_drives(units, config);
    slices_ = Regions(std::move(slices), buffers.slices, speed.read);
    gradients_ = Regions(std::move(gradients), buffers.gradients, speed.read);
    if (traffic.activations > 0) {
      add_activations(traffic, speed);
      const auto part = static_cast<double>(config::part_of_host_memory(config));
      activations_.most = part / kGb / speed.read;
    }
    for (auto* ahead : {&slices_.ahead, &gradients_.ahead, &activations_})
      ahead->lost = speed.seconds_lost * speed.read;
    states_.lost = speed.seconds_lost * 2 * speed.both;
    add_exchange(computing.exchange);
    const auto parts = static_cast<double>(buffers.parts);
    if (parts > 0)
      states_.most = (parts - 2) * mean_part(buffers.states / parts / kGb / speed.both);
  }
  StepRun(const StepRun&) = delete;
  StepRun& operator=(const StepRun&) = delete;

  StepTime run() {
    for (int64_t i = 0; i < rank_.part.num_micro_batches; ++i)
      micro_batch(/*first=*/i == 0, /*last=*/i + 1 == rank_.part.num_micro_batches);
    if (!config_.optimizer.in_backward) {
      for (size_t unit = 0; unit < units_.size(); ++unit) update(unit);
    }
    auto time = timeline_.time();
    time.update_seconds = std::exchange(updating_, 0);
    return time;
  }

 private:
  UnitTime unit_time(size_t index, const UnitBytes& bytes, const DriveSpeed& speed,
                     const ComputeSpeed& computing) const {
    const auto& unit = rank_.units[index];
    const bool first = index == 0 || rank_.units[index - 1].stage != unit.stage;
    const auto& [embedding, block, head] = computing.layers;
    double seconds = block * static_cast<double>(unit.layers.end - unit.layers.begin);
    if (first && rank_.part.stages[unit.stage].embeds) seconds += embedding;
    if (unit.predicts) seconds += head;
    UnitTime time{
        .states = (bytes.updated_on_drives - bytes.brought_from_drives) / kGb / speed.both,
        .slice_write = (bytes.copied_to_drives + bytes.brought_from_drives) / kGb / speed.write *
                       share_of_write(speed),
        .gradient_write = bytes.gradients.bytes / kGb / speed.write * share_of_write(speed),
        .backward_reads = backward_reads(unit),
        .updates_slice = bytes.brought_from_drives > 0};
    time.forward = seconds * share_of_forward(config_);
    time.backward = seconds - time.forward;
    for (const auto& buffer : unit.buffers) {
      if (!buffer.trained) continue;
      time.trained = true;
      time.update += computing.update * static_cast<double>(buffer.elements) /
                     static_cast<double>(buffer.num_slices);
    }
    return time;
  }

  /// Units have it by their parameters, each micro-batch as much.
  void add_exchange(double seconds) {
    const auto numbers = [](const plan::UnitPlan& unit) {
      double sum = 0;
      for (const auto& buffer : unit.buffers) sum += static_cast<double>(buffer.elements);
      return sum;
    };
    double all = 0;
    for (const auto& unit : rank_.units) all += numbers(unit);
    for (size_t i = 0; i < units_.size() && all > 0; ++i) {
      const double own = seconds * numbers(rank_.units[i]) / all /
                         static_cast<double>(rank_.part.num_micro_batches);
      units_[i].forward += own * share_of_forward(config_);
      units_[i].backward += own * (1 - share_of_forward(config_));
    }
  }

  /// Seconds of a part of states on average: what is left of a unit's buffer, and its norms and biases, are parts, too.
  double mean_part(double largest) const {
    double seconds = 0, parts = 0;
    for (const auto& unit : units_) {
      if (unit.states == 0) continue;
      seconds += unit.states;
      parts += std::ceil(unit.states / largest) + 1;
    }
    return parts == 0 ? 0 : seconds / parts;
  }

  /// Blocks have about as much each.
  void add_activations(const DriveTraffic& traffic, const DriveSpeed& speed) {
    double layers = 0;
    for (const auto& unit : rank_.units)
      layers += static_cast<double>(unit.layers.end - unit.layers.begin);
    for (size_t i = 0; i < units_.size(); ++i) {
      const auto& own = rank_.units[i].layers;
      const double share = static_cast<double>(own.end - own.begin) / layers / kGb /
                           static_cast<double>(rank_.part.num_micro_batches);
      units_[i].activations_write = share * traffic.activations_written / speed.write;
      units_[i].activations_read = share * traffic.activations_read / speed.read;
    }
  }

  void micro_batch(bool first, bool last) {
    for (size_t i = 0; i < units_.size(); ++i) {
      bring(slices_, i);
      timeline_.compute(units_[i].forward);
      timeline_.write(activations_, units_[i].activations_write);
    }
    for (size_t i = units_.size(); i-- > 0;) {
      if (units_[i].backward_reads) bring(slices_, i);
      if (units_[i].activations_read > 0) timeline_.need(activations_, units_[i].activations_read);
      timeline_.compute(units_[i].backward);
      if (!first) bring(gradients_, i);
      gradients_.use(i);
      timeline_.write(gradients_.ahead, units_[i].gradient_write);
      if (last && config_.optimizer.in_backward) update(i);
    }
  }

  void bring(Regions& regions, size_t unit) {
    const double seconds = regions.use(unit);
    if (seconds > 0) timeline_.need(regions.ahead, seconds);
  }

  void update(size_t unit) {
    const auto& time = units_[unit];
    if (!time.trained) return;
    bring(gradients_, unit);
    if (time.updates_slice) bring(slices_, unit);
    timeline_.need(states_, time.states, time.update);
    updating_ += time.update;
    slices_.use(unit);
    timeline_.write(slices_.ahead, time.slice_write);
  }

  const config::RunConfig& config_;
  const plan::RankPlan& rank_;
  std::vector<UnitTime> units_;
  Regions slices_, gradients_;
  Ahead activations_, states_;
  Timeline timeline_{{&slices_.ahead, &gradients_.ahead, &activations_, &states_}};
  double updating_ = 0;  // of its computing
};

}  // namespace

StepTime step_time(const config::RunConfig& config, const plan::RankPlan& rank,
                   const DriveTraffic& traffic, const DriveSpeed& speed,
                   const ComputeSpeed& computing, double bubble) {
  StepRun step(config, rank, traffic, speed, computing);
  step.run();
  auto time = step.run();  // what the first one leaves behind is there
  const double idle = time.compute_seconds * bubble / (1 - bubble);
  time.compute_seconds += idle;
  time.seconds += idle;
  return time;
}

std::vector<std::string> step_lines(const DriveTraffic& traffic, const DriveSpeed& speed,
                                    const StepTime& time, int64_t tokens, int64_t num_ranks) {
  constexpr double kTb = 1e12, kDay = 24 * 60 * 60;
  std::vector<std::string> lines;
  auto drives = fmt::format(
      "a rank's drives, measured: {:.2f} GB/s read, {:.2f} written, {:.2f} each way at once",
      speed.read, speed.write, speed.both);
  if (speed.seconds_lost >= 0.005)
    drives += fmt::format("; {:.2f} s of computing lost for each GB", speed.seconds_lost);
  lines.push_back(std::move(drives));
  lines.push_back(
      fmt::format("a step takes about {}: computing {} ({} of it updates), transfers {}, {} of "
                  "them waited for; {} it",
                  format_seconds(time.seconds), format_seconds(time.compute_seconds),
                  format_seconds(time.update_seconds), format_seconds(time.transfer_seconds),
                  format_seconds(time.wait_seconds()),
                  time.bound_by_drives() ? "the drives bound" : "computing bounds"));
  if (time.bound_by_drives()) {
    const double passes = time.compute_seconds - time.update_seconds;
    lines.push_back(fmt::format(
        "computing takes as long as the transfers from {} tokens a step on; this run has {}",
        format_count(static_cast<double>(tokens) * (time.transfer_seconds - time.update_seconds) /
                     passes),
        format_count(static_cast<double>(tokens))));
  }
  const double all = traffic.written_in_all() * static_cast<double>(num_ranks);
  lines.push_back(fmt::format("wear: {} written a step by all ranks, {:.3g} TB a day at that speed",
                              format_bytes(static_cast<int64_t>(all)),
                              all / kTb * kDay / time.seconds));
  return lines;
}

}  // namespace tessera::predict
