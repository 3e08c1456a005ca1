#include "tessera/precision/loss_scaler.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace tessera::precision {

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.initial_scale > 0, "loss_scaler: expected initial_scale > 0, got ",
                    options.initial_scale);
  TORCH_CHECK_VALUE(options.growth_factor > 1, "loss_scaler: expected growth_factor > 1, got ",
                    options.growth_factor);
  TORCH_CHECK_VALUE(options.backoff_factor > 0 && options.backoff_factor < 1,
                    "loss_scaler: expected backoff_factor between 0 and 1, got ",
                    options.backoff_factor);
  TORCH_CHECK_VALUE(options.growth_interval > 0, "loss_scaler: expected growth_interval > 0, got ",
                    options.growth_interval);
  state_.scale = options.initial_scale;
}

void LossScaler::update(bool found_inf) {
  // In float32, as torch keeps it: the sequence is the same even at the ends of the range.
  const auto scale = static_cast<float>(state_.scale);
  if (found_inf) {
    state_.scale = scale * static_cast<float>(options_.backoff_factor);
    state_.growth_tracker = 0;
    ++state_.skipped_steps;
    return;
  }
  if (++state_.growth_tracker < options_.growth_interval) return;
  const float grown = scale * static_cast<float>(options_.growth_factor);
  if (std::isfinite(grown)) state_.scale = grown;
  state_.growth_tracker = 0;
}

}  // namespace tessera::precision
