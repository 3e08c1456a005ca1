// How a run's settings become steps and micro-batches, and which of them cannot.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/config/run_config.h"

namespace tessera::config {

int64_t num_micro_batches(const RunConfig& config, const mesh::MeshShape& mesh) {
  const int64_t share = config.train.global_batch / mesh.data_ranks();
  const int64_t size = config.train.micro_batch > 0 ? config.train.micro_batch
                       : mesh.pp > 1                ? 1
                                                    : share;
  return share / size;
}

std::optional<KeyProblem> in_backward_problem(const RunConfig& config,
                                              const mesh::MeshShape& mesh) {
  if (!config.optimizer.in_backward) return {};
  const auto count = num_micro_batches(config, mesh);
  if (count == 1) return {};
  return KeyProblem{"optimizer.in_backward",
                    fmt::format("a weight is updated by its first gradient, and here {} "
                                "micro-batches add theirs up first; set train.micro_batch to 0",
                                count)};
}

int64_t num_steps(const TrainSection& train, int64_t num_rows, int64_t step, int64_t samples_seen) {
  if (train.epochs == 0) return train.steps;
  const double rows = std::ceil(train.epochs * static_cast<double>(num_rows));
  const auto left = static_cast<int64_t>(std::min(rows, 0x1p62)) - samples_seen;
  return step + std::max<int64_t>(0, left / train.global_batch + (left % train.global_batch > 0));
}

std::optional<KeyProblem> schedule_problem(const ScheduleSection& schedule, int64_t steps,
                                           const std::string& origin) {
  if (schedule.warmup_steps > steps) {
    return KeyProblem{"schedule.warmup_steps",
                      fmt::format("expected at most {}, got {}", origin, schedule.warmup_steps)};
  }
  if (schedule.type == optim::LearningRateSchedule::wsd &&
      schedule.decay_steps > steps - schedule.warmup_steps) {
    return KeyProblem{"schedule.decay_steps",
                      fmt::format("expected at most {} ({} less {} of warm-up), got {}",
                                  steps - schedule.warmup_steps, origin, schedule.warmup_steps,
                                  schedule.decay_steps)};
  }
  return {};
}

}  // namespace tessera::config
