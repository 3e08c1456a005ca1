#include "tessera/report/expert_load.h"

#include <algorithm>

namespace tessera::report {

void ExpertTotals::add(const StepRecord& record) {
  if (record.experts.empty()) return;
  if (map_.layers.empty()) {
    for (const auto& load : record.experts) map_.layers.push_back(load.layer);
  }
  if (record.experts.size() != map_.layers.size()) return;  // of a log that another model began
  std::vector<double> violations;
  for (const auto& load : record.experts) violations.push_back(load.max_violation());
  map_.add(record.step, violations);
  last_.push_back(record.experts);
  if (last_.size() > kLastSteps) last_.pop_front();
}

std::vector<ExpertSummary> ExpertTotals::last() const {
  std::vector<ExpertSummary> layers;
  const auto count = static_cast<double>(last_.size());
  for (size_t i = 0; i < map_.layers.size(); ++i) {
    auto& layer = layers.emplace_back();
    layer.load = {.layer = map_.layers[i],
                  .tokens = std::vector<int64_t>(last_.front()[i].tokens.size()),
                  .entropy = 0};
    for (const auto& loads : last_) {
      const auto& load = loads[i];
      for (size_t e = 0; e < std::min(load.tokens.size(), layer.load.tokens.size()); ++e) {
        layer.load.tokens[e] += load.tokens[e];
      }
      layer.load.entropy += load.entropy / count;
      layer.mean_of_max_violation += load.max_violation() / count;
    }
  }
  return layers;
}

std::string expert_load_svg(const ExpertTotals& totals, const ExpertLoadOptions& options) {
  return layer_map_svg(totals.violations(), {.title = options.title,
                                             .subtitle = options.subtitle,
                                             .measure = "MaxVio",
                                             .least_darkest = 0.1});
}

}  // namespace tessera::report
