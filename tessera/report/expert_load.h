// How evenly the experts of each layer were used over a run, as a picture and at its end.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tessera/report/layer_map.h"
#include "tessera/report/sink.h"

namespace tessera::report {

/// The load of one layer's experts over the last steps of a run together.
struct ExpertSummary {
  ExpertLoad load;                   ///< tokens: sums over these steps; entropy, dropped: the means
  double mean_of_max_violation = 0;  ///< of each step alone
};

/// What summary and picture need of the steps: a number for each layer and step, and the last
/// kLastSteps whole.
class ExpertTotals {
 public:
  static constexpr size_t kLastSteps = 50;

  void add(const StepRecord& record);  ///< one without experts adds nothing

  std::vector<ExpertSummary> last() const;  ///< by layer; empty: the model has no experts
  bool empty() const { return map_.empty(); }
  const LayerMap& violations() const { return map_; }   ///< MaxVio
  const LayerMap& dropped() const { return dropped_; }  ///< in %; empty: none is ever dropped

 private:
  LayerMap map_, dropped_;
  std::deque<std::vector<ExpertLoad>> last_;
};

struct ExpertLoadOptions {
  std::string title = "Load of experts";
  std::string subtitle;
};

/// The layer map (layer_map.h) of MaxVio: darker where the fullest expert is further above the mean. Where
/// experts have no room for all tokens, the map of the shares dropped stands below it, in a picture twice as high.
std::string expert_load_svg(const ExpertTotals& totals, const ExpertLoadOptions& options = {});

}  // namespace tessera::report
