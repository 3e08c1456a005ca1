// Learning-rate schedules: pure functions of the step.
#pragma once

#include <cstdint>

#include "tessera/base/choices.h"

namespace tessera::optim {

/// Warm-up is linear from peak / warmup_steps to the peak. Then:
///   constant         the peak
///   linear, cosine   down to min_ratio at the last step (Loshchilov and Hutter, ICLR 2017)
///   wsd              the peak, then linear to min_ratio over the last decay_steps (warm-up,
///                    stable, decay; Hu et al., MiniCPM, 2024)
struct LearningRateOptions {
  LearningRateSchedule type = LearningRateSchedule::cosine;
  double learning_rate = 3e-4;  ///< the peak
  double min_ratio = 0.1;       ///< last learning rate / peak
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  ///< wsd; 0: a fifth of total_steps
  int64_t total_steps = 1;
};

/// The learning rate of `step`, counted from 0. Steps past the end have the last one's.
double learning_rate(const LearningRateOptions& options, int64_t step);

}  // namespace tessera::optim
