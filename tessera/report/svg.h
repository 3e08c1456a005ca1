// The loss curve as a picture, and what other pictures need.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/report/metrics.h"

namespace tessera::report {

enum class AxisScale { automatic, linear, logarithmic };

struct LossCurveOptions {
  std::string title = "Loss";
  std::string subtitle;
  AxisScale y = AxisScale::automatic;  ///< logarithmic if all values are positive and the largest
                                       ///< is 20 times the least
};

/// A standalone SVG of 900 x 480, in light or dark colours as the viewer prefers: the training loss
/// faint, its moving average over a thirtieth of the steps bold, the validation loss as dots. Both
/// in order of step. Values that are not finite leave a gap, and the first is marked. Above 1000
/// points the faint curve keeps the least and the largest value of every five hundredth of the run,
/// so the size stays below 30 KB. Without any finite value: empty axes that say so. Throws nothing.
std::string loss_curve_svg(const std::vector<StepValue>& train,
                           const std::vector<StepValue>& validation,
                           const LossCurveOptions& options = {});

/// Mean of the values within `half_window` on both sides; fewer at the ends, where the window stays
/// symmetric at the start (so the first value stays itself) and reaches back fully at the end.
/// Values that are not finite are left out of the means and stay themselves.
std::vector<double> moving_average(const std::vector<double>& values, size_t half_window);

/// `points` if at most `max_points` (an even number >= 2), else the least and the largest value of
/// each of max_points / 2 stretches of equal length, in order of step; a stretch with a value that
/// is not finite keeps the first such one, too.
std::vector<StepValue> decimate(const std::vector<StepValue>& points, size_t max_points);

/// `text` as the text of an SVG holds it; control characters become spaces.
std::string escaped(std::string_view text);

}  // namespace tessera::report
