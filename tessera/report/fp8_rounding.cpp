#include "tessera/report/fp8_rounding.h"

#include <algorithm>
#include <map>

namespace tessera::report {

Fp8Worst worst_of(const std::vector<Fp8Rounding>& layers, double Fp8Rounding::Operand::*share) {
  Fp8Worst worst;
  for (const auto& layer : layers) {
    for (size_t i = 0; i < layer.operands.size(); ++i) {
      const double own = layer.operands[i].*share;
      if (own > worst.share) worst = {own, layer.path, Fp8Rounding::kOperands[i]};
    }
  }
  return worst;
}

std::vector<Figure> fp8_figures(const std::vector<Fp8Rounding>& layers) {
  if (layers.empty()) return {};
  using Operand = Fp8Rounding::Operand;
  return {{.tag = "fp8/underflow", .value = worst_of(layers, &Operand::underflow).share},
          {.tag = "fp8/overflow", .value = worst_of(layers, &Operand::overflow).share}};
}

void Fp8Totals::add(const StepRecord& record) {
  if (record.fp8.empty()) return;
  std::map<int64_t, double> lost;
  for (const auto& layer : record.fp8) {
    auto& most = lost[layer.layer];
    for (const auto& operand : layer.operands) most = std::max(most, 100 * operand.lost());
  }
  if (map_.layers.empty()) {
    for (const auto& [layer, share] : lost) map_.layers.push_back(layer);
  }
  const bool same = lost.size() == map_.layers.size() &&
                    (last_.empty() || last_.back().size() == record.fp8.size());
  if (!same) return;  // of a log that another model began
  std::vector<double> shares;
  for (const auto& [layer, share] : lost) shares.push_back(share);
  map_.add(record.step, shares);
  last_.push_back(record.fp8);
  if (last_.size() > kLastSteps) last_.pop_front();
}

std::vector<Fp8Rounding> Fp8Totals::last() const {
  if (last_.empty()) return {};
  auto layers = last_.front();
  for (size_t i = 0; i < layers.size(); ++i) {
    for (size_t j = 0; j < layers[i].operands.size(); ++j) {
      auto& all = layers[i].operands[j];
      all.underflow = all.overflow = 0;
      for (const auto& step : last_) {
        const auto& own = step[i].operands[j];
        all.amax = std::max(all.amax, own.amax), all.scale = std::min(all.scale, own.scale);
        all.underflow += own.underflow / static_cast<double>(last_.size());
        all.overflow += own.overflow / static_cast<double>(last_.size());
      }
    }
  }
  return layers;
}

}  // namespace tessera::report
