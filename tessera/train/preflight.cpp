#include "tessera/train/preflight.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <iterator>
#include <limits>

#include "tessera/base/units.h"
#include "tessera/config/needs.h"
#include "tessera/models/adapter.h"
#include "tessera/offload/tune.h"
#include "tessera/predict/drives.h"
#include "tessera/predict/states.h"
#include "tessera/predict/step_time.h"
#include "tessera/schedule/simulate.h"
#include "tessera/train/engine_options.h"
#include "tessera/train/layer_costs.h"
#include "tessera/train/memory_and_traffic.h"

namespace tessera::train {
namespace {

std::string bytes_text(double bytes) { return format_bytes(static_cast<int64_t>(bytes)); }

/// Where things are: the space of the states, of slices without states, or of activations; null if this rank has
/// nothing there.
const offload::Space* space_of(const Run& run) {
  if (const auto* states = run.optimizer.stored()) return &states->space();
  if (const auto* slices = run.parallel.stored()) return &slices->space();
  return run.activations ? &run.activations->space() : nullptr;
}

std::vector<std::string> place_lines(const Run& run, const offload::Space& space) {
  std::vector<std::string> paths;
  for (const auto& path : space.options().paths) paths.push_back(path.string());
  const auto place = fmt::format("{}; {}", fmt::join(paths, ", "), space.way());
  std::vector<std::string> lines;
  if (const auto states = predicted_states(run); states.on_drives > 0) {
    lines.push_back(fmt::format(
        "of a rank's states {} are on drives ({}); in memory at most: parameters {}, gathered "
        "{}, gradients {}, buffers and the other states {}; checkpoints are written while training "
        "waits",
        bytes_text(states.on_drives), place, bytes_text(states.parameters),
        bytes_text(states.gathered), bytes_text(states.gradients), bytes_text(states.optimizer)));
  }
  if (run.activations) {
    lines.push_back(
        fmt::format("what blocks keep for their backward goes to drives ({}), through at most {} "
                    "of memory",
                    place, format_bytes(run.activations->memory_bytes())));
  }
  return lines;
}

/// Seconds that a rank's threads lose to each GB that `move` moves: they multiply matrices meanwhile.
double seconds_lost(const std::function<offload::Speed()>& move) {
  constexpr int64_t kSize = 512;  // a few milliseconds
  constexpr int kProducts = 32;
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto a = torch::ones({kSize, kSize}), b = torch::ones({kSize, kSize});
  auto result = torch::empty({kSize, kSize});
  torch::mm_out(result, a, b);
  const auto alone = Clock::now();
  for (int i = 0; i < kProducts; ++i) torch::mm_out(result, a, b);
  const double each = seconds_since(alone) / kProducts;

  auto moving = std::async(std::launch::async, move);
  const auto beside = Clock::now();
  double useful = 0;
  for (; moving.wait_for(std::chrono::seconds(0)) != std::future_status::ready; useful += each)
    torch::mm_out(result, a, b);
  const double lost = seconds_since(beside) - useful;
  return std::max(0.0, lost) * 1e9 / static_cast<double>(moving.get().moved_bytes);
}

/// The slowest rank's.
predict::DriveSpeed measured_speed(const Run& run, double stored) {
  constexpr int64_t kMostBytes = int64_t{128} << 20;
  const auto options = storage_options(run.config, run.world.rank());
  const auto measure = [&] {
    return offload::measure(options.space,
                            std::clamp(static_cast<int64_t>(stored), int64_t{1}, kMostBytes),
                            options.host_memory / 4);
  };
  run.world.barrier();
  const auto speed = measure();
  run.world.barrier();
  const double lost = run.device.is_cpu() ? seconds_lost(measure) : 0;
  const auto slowest = torch::tensor({speed.read, speed.write, speed.both, -lost}, torch::kFloat64);
  run.world.all_reduce(slowest, comm::ReduceOp::min).wait();
  const auto* values = slowest.const_data_ptr<double>();
  return {.read = values[0], .write = values[1], .both = values[2], .seconds_lost = -values[3]};
}

/// Seconds of an update of one number in memory.
double update_seconds(const Run& run) {
  constexpr int64_t kNumbers = 1 << 21;
  constexpr int kRuns = 3;  // the first pays for fresh memory
  const auto slices = run.parallel.slices();
  const auto trained = std::ranges::find_if(
      slices, [](const auto& slice) { return slice.treatment != optim::Treatment::matrices; });
  double best = std::numeric_limits<double>::infinity();
  if (trained != slices.end()) {
    const auto numbers = [&](const torch::Tensor& like) {
      return like.defined() ? torch::zeros({kNumbers}, torch::dtype(like.scalar_type())) : like;
    };
    auto options = run.optimizer.options();
    options.storage = {};
    optim::Optimizer optimizer({{.parameter = numbers(trained->parameter),
                                 .gradient = numbers(trained->gradient),
                                 .treatment = trained->treatment,
                                 .copy = numbers(trained->copy),
                                 .gradient_factor = trained->gradient_factor}},
                               options);
    for (int i = 0; i < kRuns; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      optimizer.begin_step();
      optimizer.update(0, /*learning_rate=*/0);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      best = std::min(best, seconds.count());
    }
  }
  return std::isinf(best) ? 0 : best / kNumbers;
}

/// Seconds of a step in which ranks of this host bring parameters and gradients to one another: they compute meanwhile
/// on no other processor. 0 on a GPU, which does both at once.
double exchange_seconds(const Run& run) {
  constexpr int64_t kNumbers = 1 << 20;  // of each rank
  constexpr int kRuns = 4;
  const auto& axis = run.data_axis;
  if (axis.size() == 1 || !run.device.is_cpu()) return 0;
  const auto all = torch::zeros({axis.size() * kNumbers});
  const auto own = torch::zeros({kNumbers});
  std::vector<double> seconds;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    axis.all_gather(all, own).wait();
    axis.reduce_scatter(own, all).wait();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + kRuns / 2);
  const auto slowest = torch::tensor(seconds[kRuns / 2], torch::kFloat64);
  run.world.all_reduce(slowest, comm::ReduceOp::max).wait();
  const auto bytes = 2 * static_cast<double>(all.nbytes());
  return slowest.item<double>() * predict::communication(run.config, run.rank_plan()).dp().total() /
         bytes;
}

/// Measured on the layers of the rank that has most: others of the pipeline have fewer, or none. An adapter's backward has
/// fewer products than that of the block that is measured.
predict::ComputeSpeed measured_computing(const Run& run) {
  auto shape = std::ranges::max(run.plan.ranks, {}, [](const auto& rank) {
                 return rank.part.shape.num_layers;
               }).part.shape;
  if (shape.experts.num > 0) {  // a rank's experts have as many rows as it sends
    auto& num = shape.experts.num;
    auto& top_k = shape.experts.top_k;
    num /= run.plan.mesh.ep;
    shape.experts.groups = shape.experts.top_groups = 1;  // these may be on other ranks
    top_k = std::clamp<int64_t>(std::llround(models::expert_rows(shape)), 1, num);
  }
  predict::ComputeSpeed speed{
      .layers = measure_layer_costs(
          run.config,
          {.shape = shape, .mesh = run.plan.mesh, .device = run.device, .all = run.world}),
      .update = update_seconds(run),
      .exchange = exchange_seconds(run)};
  const auto whole = run.model->shape();
  const double share =
      models::adapter_flops_per_token(run.adapter, whole, run.config.data.seq_len) /
      models::training_flops_per_token(whole, run.config.data.seq_len);
  for (auto* seconds : {&speed.layers.embedding, &speed.layers.block, &speed.layers.head})
    *seconds *= share;
  return speed;
}

}  // namespace

std::vector<std::string> preflight(const Run& run) {
  // Not what this rank has, but what the run is told: all ranks meet below, of a pipeline's some may have nothing.
  if (config::kinds_on_drives(run.config) == 0) return {};
  const auto traffic = predict::drive_traffic(run.config, run.rank_plan());
  std::vector<std::string> lines;
  if (const auto* space = space_of(run)) {
    lines = space->notes();
    std::ranges::move(place_lines(run, *space), std::back_inserter(lines));
  }
  const auto moved = predict::drive_lines(traffic);
  lines.insert(lines.end(), moved.begin(), moved.end());
  const int64_t tokens = run.config.train.global_batch * run.config.data.seq_len;
  const auto computing = measured_computing(run);
  const auto speed = measured_speed(run, traffic.stored + traffic.activations);
  const auto time = predict::step_time(run.config, run.rank_plan(), traffic, speed, computing,
                                       schedule::simulate(run.plan.pipeline.schedule).bubble());
  const auto step = predict::step_lines(traffic, speed, time, tokens, run.world.size());
  lines.insert(lines.end(), step.begin(), step.end());
  return lines;
}

}  // namespace tessera::train
