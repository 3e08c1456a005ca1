// The loss of a step whose documents are pairs of a chosen and a rejected answer, and what is told of it.
#pragma once

#include <memory>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/batch.h"
#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/report/sink.h"
#include "tessera/train/pair_loss.h"

namespace tessera::train {

/// What a global batch holds, over all ranks.
struct Amounts {
  double tokens = 0;  ///< valid ones
  double pairs = 0;
  double chosen_tokens = 0;  ///< valid ones of the chosen answers
  double positions = 0;      ///< all of them, padding too
  double rows = 0;

  void add(const data::Batch& batch);
};

/// Sums over pairs; those of several ranks are added.
struct PreferenceSums {
  double pairs = 0, chosen_tokens = 0;
  double loss = 0;           ///< of pair_loss
  double cross_entropy = 0;  ///< of the chosen answers' tokens
  double chosen_reward = 0, rejected_reward = 0;
  double accurate = 0;  ///< pairs whose chosen answer has the larger reward; equal ones count half
  double chosen = 0, rejected = 0;  ///< log-probabilities; orpo: means over an answer's tokens
  double log_odds = 0, log_odds_ratio = 0;

  std::vector<double> values() const;
  static PreferenceSums of(const std::vector<double>& values);
};

/// The whole loss: mean over pairs; orpo: and the mean cross-entropy over the chosen answers' tokens.
double loss_of(const PreferenceSums& sums, PreferenceLoss loss);

/// rewards/{chosen,rejected,accuracies,margins} and logps/{chosen,rejected} as TRL names them; orpo: nll_loss,
/// log_odds_ratio and log_odds_chosen too.
std::vector<report::Figure> figures_of(const PreferenceSums& sums, PreferenceLoss loss);

/// Sums of the log-probabilities of a batch's documents, float64 [documents], from all token losses [B T].
std::vector<double> log_probabilities(const data::Batch& batch, const at::Tensor& losses);

/// The loss of a batch of pairs times `scale`, as part of a global batch with `amounts`; `reference`: sums under the model at
/// the start, by document (orpo: none). Computing it adds to `sums`, which must live as long.
kernels::TokenLoss preference_loss(const config::PreferenceSection& section,
                                   const data::Batch& batch, const Amounts& amounts, double scale,
                                   std::shared_ptr<const std::vector<double>> reference,
                                   PreferenceSums& sums);

}  // namespace tessera::train
