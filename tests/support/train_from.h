// Some steps of a run, saved as its job says.
#pragma once

#include <optional>
#include <vector>

#include "tessera/train/checkpointing.h"
#include "tessera/train/step.h"

namespace tessera {

/// Losses of the steps after `counts` up to `last`, with the saves that the job asks for.
inline std::vector<double> train_from(train::Run& run, train::Counts counts, int64_t last,
                                      train::Checkpointing* checkpointing = nullptr) {
  std::vector<double> losses;
  while (counts.step < last) {
    const auto result = train::train_step(run, counts.step);
    losses.push_back(result.loss);
    ++counts.step;
    counts.samples_seen += run.config.train.global_batch;
    counts.tokens_seen += result.num_tokens;
    if (checkpointing != nullptr) checkpointing->after_step(counts, std::nullopt, result.requests);
  }
  if (checkpointing != nullptr) checkpointing->finish();
  return losses;
}

}  // namespace tessera
