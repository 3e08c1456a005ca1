// How evenly the experts of each layer were used over a run, as a picture and at its end.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tessera/report/sink.h"

namespace tessera::report {

/// The load of one layer's experts over the last steps of a run together.
struct ExpertSummary {
  ExpertLoad load;                   ///< tokens: sums over these steps; entropy: the mean
  double mean_of_max_violation = 0;  ///< of each step alone
};

/// What summary and picture need of the steps: a number for each layer and step, and the last
/// kLastSteps whole.
class ExpertTotals {
 public:
  static constexpr size_t kLastSteps = 50;

  void add(const StepRecord& record);  ///< one without experts adds nothing

  std::vector<ExpertSummary> last() const;  ///< by layer; empty: the model has no experts
  bool empty() const { return steps_.empty(); }

  const std::vector<int64_t>& steps() const { return steps_; }
  const std::vector<int64_t>& layers() const { return layers_; }
  /// MaxVio of layers()[i] in each step.
  const std::vector<double>& violations(size_t i) const { return violations_[i]; }

 private:
  std::vector<int64_t> steps_, layers_;
  std::vector<std::vector<double>> violations_;
  std::deque<std::vector<ExpertLoad>> last_;
};

struct ExpertLoadOptions {
  std::string title = "Load of experts";
  std::string subtitle;
};

/// A standalone SVG of 900 x 480: a row for each layer, steps to the right, darker where the fullest
/// expert is further above the mean (MaxVio, the mean of neighbouring steps where there are many). Some 4000
/// cells at the most.
std::string expert_load_svg(const ExpertTotals& totals, const ExpertLoadOptions& options = {});

}  // namespace tessera::report
