#include "tessera/report/expert_load.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/report/plot_frame.h"

namespace tessera::report {

void ExpertTotals::add(const StepRecord& record) {
  if (record.experts.empty()) return;
  if (map_.layers.empty()) {
    for (const auto& load : record.experts) map_.layers.push_back(load.layer);
    dropped_.layers = map_.layers;
  }
  if (record.experts.size() != map_.layers.size()) return;  // of a log that another model began
  std::vector<double> violations, dropped;
  for (const auto& load : record.experts) {
    violations.push_back(load.max_violation());
    if (load.dropped) dropped.push_back(100 * *load.dropped);
  }
  map_.add(record.step, violations);
  if (dropped.size() == dropped_.layers.size()) dropped_.add(record.step, dropped);
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
      if (load.dropped) {
        layer.load.dropped = layer.load.dropped.value_or(0) + *load.dropped / count;
      }
      layer.mean_of_max_violation += load.max_violation() / count;
    }
  }
  return layers;
}

std::string expert_load_svg(const ExpertTotals& totals, const ExpertLoadOptions& options) {
  const auto load = layer_map_svg(totals.violations(), {.title = options.title,
                                                        .subtitle = options.subtitle,
                                                        .measure = "MaxVio",
                                                        .least_darkest = 0.1});
  if (totals.dropped().empty()) return load;
  const auto dropped = layer_map_svg(totals.dropped(), {.title = "Choices dropped",
                                                        .subtitle = "for which experts had no room",
                                                        .measure = "%",
                                                        .least_darkest = 1});
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}">)"
      "\n{2}<svg y=\"{3:.0f}\"{4}</svg>\n",
      kPlotWidth, 2 * kPlotHeight, load, kPlotHeight, dropped.substr(std::string("<svg").size()));
}

}  // namespace tessera::report
