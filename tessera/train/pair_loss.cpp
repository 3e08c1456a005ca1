#include "tessera/train/pair_loss.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::train {
namespace {

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

/// log(1 - exp(x)) for x < 0 (Maechler, Accurately Computing log(1 - exp(-|a|)), 2012).
double log_of_rest(double x) {
  return x > -std::numbers::ln2 ? std::log(-std::expm1(x)) : std::log1p(-std::exp(x));
}

PairLoss sigmoid_loss(double margin, const PairLossOptions& options) {
  const double z = options.beta * margin, smoothing = options.label_smoothing;
  const double slope = options.beta * (smoothing * sigmoid(z) - (1 - smoothing) * sigmoid(-z));
  return {.value = -(1 - smoothing) * log_sigmoid(z) - smoothing * log_sigmoid(-z),
          .chosen_slope = slope,
          .rejected_slope = -slope};
}

PairLoss ipo_loss(double chosen, double rejected, const Answer& of_chosen,
                  const Answer& of_rejected, double beta) {
  const double miss =
      chosen / of_chosen.num_tokens - rejected / of_rejected.num_tokens - 1 / (2 * beta);
  return {.value = miss * miss,
          .chosen_slope = 2 * miss / of_chosen.num_tokens,
          .rejected_slope = -2 * miss / of_rejected.num_tokens};
}

PairLoss orpo_loss(const Answer& chosen, const Answer& rejected, double beta) {
  const double of_chosen = chosen.log_probability / chosen.num_tokens;
  const double of_rejected = rejected.log_probability / rejected.num_tokens;
  const double odds = of_chosen - log_of_rest(of_chosen) - (of_rejected - log_of_rest(of_rejected));
  // The derivative of log odds by log p is 1 / (1 - p).
  const double slope = -beta * sigmoid(-odds);
  return {.value = -beta * log_sigmoid(odds),
          .chosen_slope = slope / -std::expm1(of_chosen) / chosen.num_tokens,
          .rejected_slope = -slope / -std::expm1(of_rejected) / rejected.num_tokens,
          .chosen_reward = beta * of_chosen,
          .rejected_reward = beta * of_rejected,
          .log_odds = odds};
}

}  // namespace

PairLoss pair_loss(const Answer& chosen, const Answer& rejected, const PairLossOptions& options) {
  if (options.loss == PreferenceLoss::orpo) return orpo_loss(chosen, rejected, options.beta);
  const double of_chosen = chosen.log_probability - chosen.reference;
  const double of_rejected = rejected.log_probability - rejected.reference;
  auto result = options.loss == PreferenceLoss::ipo
                    ? ipo_loss(of_chosen, of_rejected, chosen, rejected, options.beta)
                    : sigmoid_loss(of_chosen - of_rejected, options);
  result.chosen_reward = options.beta * of_chosen;
  result.rejected_reward = options.beta * of_rejected;
  return result;
}

}  // namespace tessera::train
