// What rounding to 8 bits did to a run's layers, as a picture and at its end.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "tessera/report/layer_map.h"
#include "tessera/report/sink.h"

namespace tessera::report {

/// The largest share of numbers lost by one operand, of those that `share` reads.
struct Fp8Worst {
  double share = 0;
  std::string path;
  std::string_view operand;
};
Fp8Worst worst_of(const std::vector<Fp8Rounding>& layers, double Fp8Rounding::Operand::*share);

/// Figures of a step: "fp8/underflow" and "fp8/overflow", the largest shares of any operand.
std::vector<Figure> fp8_figures(const std::vector<Fp8Rounding>& layers);

/// What summary and picture need of the steps in which it was counted: a number for each block and step,
/// and the last kLastSteps whole.
class Fp8Totals {
 public:
  static constexpr size_t kLastSteps = 50;

  void add(const StepRecord& record);  ///< one in which nothing was counted adds nothing

  /// The last steps together: the largest amax, the least scale, mean shares.
  std::vector<Fp8Rounding> last() const;
  bool empty() const { return map_.empty(); }
  /// Percent of the numbers of a block's worst operand that under- or overflowed.
  const LayerMap& lost() const { return map_; }

 private:
  LayerMap map_;
  std::deque<std::vector<Fp8Rounding>> last_;
};

}  // namespace tessera::report
