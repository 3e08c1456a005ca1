// What a pair of a chosen and a rejected answer costs, by their log-probabilities.
#pragma once

#include "tessera/base/choices.h"

namespace tessera::train {

struct PairLossOptions {
  PreferenceLoss loss = PreferenceLoss::sigmoid;
  double beta = 0.1;
  double label_smoothing = 0;  ///< sigmoid: share of pairs whose answers are taken as mixed up
};

/// One answer: the sum of its tokens' log-probabilities, and how many they are.
struct Answer {
  double log_probability = 0;
  double reference = 0;  ///< the same sum under the model that it is compared with
  double num_tokens = 1;
};

/// A pair's part of the loss, its derivatives by both log-probabilities, and what is told of it.
struct PairLoss {
  double value = 0;
  double chosen_slope = 0, rejected_slope = 0;
  double chosen_reward = 0, rejected_reward = 0;
  double log_odds = 0;  ///< orpo
};

/// With r = log_probability - reference, per pair, as in TRL:
///   sigmoid  -(1 - s) log sigma(beta (r_c - r_r)) - s log sigma(-beta (r_c - r_r)), s label_smoothing
///            (Rafailov et al., Direct Preference Optimization, 2023, equation 7; cDPO)
///   ipo      (r_c / n_c - r_r / n_r - 1 / (2 beta))^2, n the number of tokens
///            (Azar et al., A General Theoretical Paradigm .., 2024, equation 17)
///   orpo     -beta log sigma(log odds_c - log odds_r), odds = p / (1 - p), log p = log_probability / n
///            (Hong et al., ORPO, 2024, equation 7; the cross-entropy beside it is the caller's)
/// Rewards are beta r; orpo's beta log p.
PairLoss pair_loss(const Answer& chosen, const Answer& rejected, const PairLossOptions& options);

}  // namespace tessera::train
