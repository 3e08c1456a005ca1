// Dynamic loss scaling for float16 (Micikevicius et al., Mixed Precision Training, ICLR 2018,
// section 3.2), as torch.amp.GradScaler does it.
#pragma once

#include <cstdint>

namespace tessera::precision {

struct LossScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;     ///< after growth_interval steps in a row without overflow
  double backoff_factor = 0.5;  ///< after an overflow
  int64_t growth_interval = 2000;
};

/// What a checkpoint holds.
struct LossScalerState {
  double scale = 0;
  int64_t growth_tracker = 0;  ///< steps without overflow since the scale last changed
  int64_t skipped_steps = 0;
};

/// The factor that lifts gradients into float16's range. The loss is multiplied by scale(); the
/// optimizer multiplies gradients by 1 / scale() in its own pass (gradient_scale). An overflow is a
/// global gradient norm that is not finite: the same on all ranks, so their scalers agree.
class LossScaler {
 public:
  /// Throws c10::ValueError unless initial_scale > 0, growth_factor > 1, backoff_factor in (0, 1)
  /// and growth_interval > 0.
  explicit LossScaler(const LossScalerOptions& options = {});

  double scale() const { return state_.scale; }
  int64_t skipped_steps() const { return state_.skipped_steps; }

  /// Once a step, after the norm is known. An overflow (the step is to be skipped) lowers the
  /// scale; growth_interval steps in a row without one raise it, unless it would leave float32.
  void update(bool found_inf);

  const LossScalerState& state() const { return state_; }
  void load(const LossScalerState& state) { state_ = state; }

 private:
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace tessera::precision
