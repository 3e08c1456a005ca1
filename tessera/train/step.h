// One optimizer step, and the loss on held-out data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/report/sink.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

struct StepResult {
  double loss = 0;  ///< mean over the valid tokens of the global batch, in nats, or over its pairs
  /// Figures of pairs (train/preference.h) and of experts (train/balance.h), whose losses `loss` does not hold.
  std::vector<report::Figure> figures;
  std::vector<report::ExpertLoad> experts;
  std::vector<report::Fp8Rounding> fp8;  ///< in steps whose line is due (logging.every)
  double grad_norm = 0;                  ///< of the whole model, before clipping
  double learning_rate = 0;
  int64_t num_tokens = 0;  ///< valid ones, over all ranks
  /// Loss or gradients held NaN or infinity, or data was lost: no update. The unit where it began, if one was found.
  bool skipped = false;
  std::string nonfinite_unit;
  std::string without_scale;  ///< Fp8Step
  StepRequests requests;      ///< of all ranks together
  /// Found in the first step, with train.report_unused_parameters.
  std::vector<std::string> parameters_without_gradient;
};

/// This rank's rows of a step, cut into as many micro-batches as its pipeline's schedule has.
std::vector<data::Batch> micro_batches(const Run& run, const data::Loader& loader, int64_t step);

/// Step `step`, counted from 0, on `batches`: micro-batches forward and backward, gradients summed
/// over the ranks while backward goes on, clipped to optimizer.max_grad_norm, one update. The
/// result is the same on every rank and, up to the order of floating-point sums, for any number of
/// ranks and any size of micro-batch. Collective.
StepResult train_step(Run& run, int64_t step, const std::vector<data::Batch>& batches);

/// The same on the step's own rows of the training data.
StepResult train_step(Run& run, int64_t step);

struct ValidationResult {
  double loss = 0;
  std::vector<report::Figure> figures;
};

/// Mean loss per token, or per pair, over the first train.validation_batches batches of the held-out
/// data, and what is told of pairs and of data.choices; none without such data. Collective.
std::optional<ValidationResult> validate(Run& run);

}  // namespace tessera::train
