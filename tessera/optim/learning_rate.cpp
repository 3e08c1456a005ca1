#include "tessera/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::optim {

double learning_rate(const LearningRateOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.learning_rate * static_cast<double>(step + 1) /
           static_cast<double>(options.warmup_steps);
  }
  const int64_t wsd_steps = options.decay_steps > 0 ? options.decay_steps : options.total_steps / 5;
  const int64_t decay_start = options.type == LearningRateSchedule::wsd
                                  ? std::max(options.warmup_steps, options.total_steps - wsd_steps)
                                  : options.warmup_steps;
  const int64_t span = std::max<int64_t>(1, options.total_steps - 1 - decay_start);
  const double progress =
      std::clamp(static_cast<double>(step - decay_start) / static_cast<double>(span), 0.0, 1.0);
  double remaining = 1;  // of the way from min_ratio to 1
  switch (options.type) {
    case LearningRateSchedule::constant:
      break;
    case LearningRateSchedule::linear:
    case LearningRateSchedule::wsd:
      remaining = 1 - progress;
      break;
    case LearningRateSchedule::cosine:
      remaining = 0.5 * (1 + std::cos(std::numbers::pi * progress));
      break;
  }
  return options.learning_rate * (options.min_ratio + (1 - options.min_ratio) * remaining);
}

}  // namespace tessera::optim
