// The validation that a run did best in, and whether to go on hoping for a better one.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

namespace tessera::train {

/// The lowest validation loss so far, and how many validations there were since without one that is
/// lower by at least a threshold (Prechelt, Early Stopping - But When?, 1998, criterion UP).
struct BestValidation {
  std::optional<double> loss;
  int64_t step = 0;   ///< of that loss
  int64_t since = 0;  ///< validations since the last that counted as better

  /// A loss that is no number is never better. `threshold`: train.early_stopping_threshold, 0 or more.
  void add(int64_t at_step, double found, double threshold);

  /// `patience`: validations without a better one that end a run; 0: none does.
  bool is_over(int64_t patience) const { return patience > 0 && since >= patience; }

 private:
  friend nlohmann::json to_json(const BestValidation& best);
  friend BestValidation best_validation_of(const nlohmann::json& state);

  std::optional<double> reached_;  ///< what a better one is compared with
};

/// To what a checkpoint's state keeps, and back; throws json::exception on another shape.
nlohmann::json to_json(const BestValidation& best);
BestValidation best_validation_of(const nlohmann::json& state);

}  // namespace tessera::train
