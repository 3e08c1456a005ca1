#include "tessera/train/best_validation.h"

#include <cmath>

namespace tessera::train {

using nlohmann::json;

void BestValidation::add(int64_t at_step, double found, double threshold) {
  const bool is_number = std::isfinite(found);
  if (is_number && (!loss || found < *loss)) loss = found, step = at_step;
  const bool is_better = is_number && (!reached_ || found < *reached_ - threshold);
  since = is_better ? 0 : since + 1;
  if (is_better) reached_ = found;
}

json to_json(const BestValidation& best) {
  if (!best.loss || !best.reached_) return {{"since", best.since}};
  return {{"loss", *best.loss},
          {"step", best.step},
          {"since", best.since},
          {"reached", *best.reached_}};
}

BestValidation best_validation_of(const json& state) {
  BestValidation best;
  best.since = state.at("since");
  if (!state.contains("loss")) return best;
  best.loss = state.at("loss").get<double>();
  best.step = state.at("step");
  best.reached_ = state.at("reached").get<double>();
  return best;
}

}  // namespace tessera::train
