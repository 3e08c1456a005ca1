#include "tessera/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

#include "tessera/report/number.h"
#include "tessera/report/plot_frame.h"

namespace tessera::report {
namespace {

constexpr double kLeft = kPlotLeft, kRight = kPlotRight, kTop = kPlotTop, kBottom = kPlotBottom;

struct Axes {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  bool log_y = false;

  double x(double step) const {
    return kLeft + (step - x_low) / (x_high - x_low) * (kRight - kLeft);
  }
  double y(double value) const {
    const double share = log_y ? std::log(value / y_low) / std::log(y_high / y_low)
                               : (value - y_low) / (y_high - y_low);
    return kBottom - share * (kBottom - kTop);
  }
};

std::vector<StepValue> finite(const std::vector<StepValue>& points) {
  std::vector<StepValue> kept;
  std::copy_if(points.begin(), points.end(), std::back_inserter(kept),
               [](const StepValue& point) { return std::isfinite(point.second); });
  return kept;
}

Axes make_axes(const std::vector<StepValue>& train, const std::vector<StepValue>& validation,
               AxisScale scale) {
  Axes axes;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
  for (const auto* points : {&train, &validation}) {
    for (const auto& [step, value] : *points) {
      first = std::min(first, step), last = std::max(last, step);
      if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
    }
  }
  if (first > last) first = 0, last = 1;
  if (low > high) low = 0, high = 1;
  axes.x_low = static_cast<double>(first);
  axes.x_high = static_cast<double>(std::max(last, first + 1));
  axes.log_y = low > 0 && (scale == AxisScale::logarithmic ||
                           (scale == AxisScale::automatic && high > 20 * low));
  if (axes.log_y) {
    const double margin = std::max(1.02, std::pow(high / low, 0.04));
    axes.y_low = low / margin, axes.y_high = high * margin;
  } else {
    // The second term keeps equal values apart from the frame.
    const double margin = std::max(0.05 * (high - low), 1e-3 * std::max(1.0, std::abs(high)));
    axes.y_low = low >= 0 ? std::max(0.0, low - margin) : low - margin;
    axes.y_high = high + margin;
  }
  return axes;
}

std::string grid(const Axes& axes) {
  std::string out;
  const auto y_ticks =
      axes.log_y ? log_ticks(axes.y_low, axes.y_high, 8) : linear_ticks(axes.y_low, axes.y_high, 8);
  const auto y_labels = tick_labels(y_ticks);
  for (size_t i = 0; i < y_ticks.size(); ++i) out += y_tick(axes.y(y_ticks[i]), y_labels[i]);
  const auto x_ticks = linear_ticks(axes.x_low, axes.x_high, 9, true);
  const auto x_labels = tick_labels(x_ticks);
  for (size_t i = 0; i < x_ticks.size(); ++i) out += x_tick(axes.x(x_ticks[i]), x_labels[i]);
  return out + axis_names("step", axes.log_y ? "loss (log)" : "loss");
}

/// The curve through the finite points, broken where one is not. A point without neighbours becomes
/// a line of no length, which its round ends show as a dot.
std::string curve(std::string_view css_class, const Axes& axes,
                  const std::vector<StepValue>& points) {
  std::string data;
  size_t connected = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const auto& [step, value] = points[i];
    if (!std::isfinite(value)) {
      connected = 0;
      continue;
    }
    data += fmt::format("{}{:.1f} {:.1f}", connected++ == 0 ? 'M' : 'L',
                        axes.x(static_cast<double>(step)), axes.y(value));
    const bool last = i + 1 == points.size() || !std::isfinite(points[i + 1].second);
    if (last && connected == 1) data += "h0";
  }
  if (data.empty()) return "";
  return fmt::format(R"(<path class="{}" stroke-linejoin="round" stroke-linecap="round" d="{}"/>)"
                     "\n",
                     css_class, data);
}

std::string dots(const Axes& axes, const std::vector<StepValue>& points) {
  std::string out;
  const double radius = points.size() > 60 ? 2.2 : 4;
  for (const auto& [step, value] : points) {
    out += fmt::format(R"(<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="{}"/>)",
                       axes.x(static_cast<double>(step)), axes.y(value), radius);
  }
  return out + "\n";
}

std::string first_not_finite(const Axes& axes, const std::vector<StepValue>& train) {
  const auto bad = std::find_if(train.begin(), train.end(),
                                [](const auto& point) { return !std::isfinite(point.second); });
  if (bad == train.end()) return "";
  const double x = axes.x(static_cast<double>(bad->first));
  const bool left_half = x < (kLeft + kRight) / 2;
  return fmt::format(
      R"(<path class="bad" d="M{:.1f} {:.0f}V{:.0f}"/><text class="badtext" x="{:.1f}" y="{:.0f}" text-anchor="{}">not finite at step {}</text>)"
      "\n",
      x, kTop, kBottom, left_half ? x + 6 : x - 6, kTop + 12, left_half ? "start" : "end",
      with_commas(bad->first));
}

/// The last values, right of the plot, pushed apart where they would overlap.
std::string end_values(const Axes& axes, const std::vector<StepValue>& mean,
                       const std::vector<StepValue>& validation) {
  std::string out;
  const bool both = !mean.empty() && !validation.empty();
  double shift = 0;
  if (both) {
    const double gap = axes.y(validation.back().second) - axes.y(mean.back().second);
    if (std::abs(gap) < 16) shift = (16 - std::abs(gap)) / 2 * (gap >= 0 ? 1 : -1);
  }
  const auto add = [&](std::string_view css_class, double value, double dy) {
    out += fmt::format(
        R"(<text class="{}" x="{:.0f}" y="{:.1f}">{}</text>)", css_class, kRight + 10,
        axes.y(value) + 4 + dy,
        std::abs(value) < 1000 ? fmt::format("{:.3f}", value) : fmt::format("{:.3g}", value));
  };
  if (!mean.empty()) add("train", mean.back().second, -shift);
  if (!validation.empty()) add("validation", validation.back().second, shift);
  return out + "\n";
}

std::string legend(bool has_mean, bool has_validation) {
  std::string out;
  double x = kRight;  // built from the right edge to the left
  const double y = kTop - 16;
  const auto add = [&](std::string_view label, double width, std::string_view mark) {
    x -= width;
    out += fmt::format(
        R"svg(<g transform="translate({:.0f} {:.0f})">{}<text x="30" y="4">{}</text></g>)svg", x, y,
        mark, label);
  };
  if (has_validation) {
    add("validation", 100,
        R"(<path class="line" d="M0 0H24"/><circle class="dot" cx="12" cy="0" r="4"/>)");
  }
  if (has_mean) add("train, smoothed", 145, R"(<path class="mean" d="M0 0H24"/>)");
  add("train", 75,
      has_mean ? R"(<path class="raw" d="M0 0H24" stroke-width="3"/>)"
               : R"(<path class="mean" d="M0 0H24"/>)");
  return out + "\n";
}

/// The moving average at some 300 steps.
std::vector<StepValue> smoothed(const std::vector<StepValue>& train) {
  std::vector<double> values;
  for (const auto& point : train) values.push_back(point.second);
  const auto means = moving_average(values, train.size() / 60);
  std::vector<StepValue> out;
  const size_t stride = (train.size() + 299) / 300;
  for (size_t i = 0; i < train.size(); ++i) {
    const bool gap = !std::isfinite(means[i]);
    const bool in_gap = !out.empty() && !std::isfinite(out.back().second);
    if (gap ? !in_gap : i % stride == 0 || i + 1 == train.size()) {
      out.emplace_back(train[i].first, means[i]);
    }
  }
  return out;
}

}  // namespace

std::vector<double> moving_average(const std::vector<double>& values, size_t half_window) {
  // Running sums over the finite values: O(n) whatever the window.
  std::vector<double> sum(values.size() + 1, 0.0), count(values.size() + 1, 0.0);
  for (size_t i = 0; i < values.size(); ++i) {
    const bool use = std::isfinite(values[i]);
    sum[i + 1] = sum[i] + (use ? values[i] : 0.0);
    count[i + 1] = count[i] + (use ? 1.0 : 0.0);
  }
  std::vector<double> means;
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t half = std::min(half_window, i);
    const size_t begin = i - half, end = std::min(i + half + 1, values.size());
    const double mean = (sum[end] - sum[begin]) / (count[end] - count[begin]);
    means.push_back(std::isfinite(values[i]) ? mean : values[i]);
  }
  return means;
}

std::vector<StepValue> decimate(const std::vector<StepValue>& points, size_t max_points) {
  if (points.size() <= max_points) return points;
  std::vector<StepValue> kept;
  const size_t stretches = max_points / 2;
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  for (size_t i = 0; i < stretches; ++i) {
    const auto begin = points.begin() + static_cast<ptrdiff_t>(i * points.size() / stretches);
    const auto end = points.begin() + static_cast<ptrdiff_t>((i + 1) * points.size() / stretches);
    const auto bad = std::find_if(
        begin, end, [](const StepValue& point) { return !std::isfinite(point.second); });
    const auto values = finite({begin, end});
    std::vector<StepValue> chosen;
    if (!values.empty()) {
      const auto [least, largest] = std::minmax_element(values.begin(), values.end(), less);
      chosen.push_back(*least);
      if (least != largest) chosen.push_back(*largest);
    }
    if (bad != end) chosen.push_back(*bad);
    std::sort(chosen.begin(), chosen.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    kept.insert(kept.end(), chosen.begin(), chosen.end());
  }
  return kept;
}

std::string loss_curve_svg(const std::vector<StepValue>& train,
                           const std::vector<StepValue>& validation,
                           const LossCurveOptions& options) {
  const auto checks = finite(decimate(validation, 200));
  const Axes axes = make_axes(train, checks, options.y);
  const auto mean = smoothed(train);
  const bool nothing = finite(train).empty() && checks.empty();
  const bool has_mean = train.size() >= 60;  // below, the window is one step

  auto out = begin_plot(options.title, options.subtitle);
  out += grid(axes);
  out += curve(has_mean ? "raw" : "mean", axes, decimate(train, 1000));
  if (has_mean) out += curve("mean", axes, mean);
  if (checks.size() > 1) out += curve("line", axes, checks);
  out += dots(axes, checks);
  out += first_not_finite(axes, train);
  out += end_values(axes, finite(mean), checks);
  out += legend(has_mean, !checks.empty());
  if (nothing) {
    out += fmt::format(R"(<text x="{:.0f}" y="{:.0f}" text-anchor="middle">no value yet</text>)",
                       (kLeft + kRight) / 2, (kTop + kBottom) / 2);
  }
  return out + "</svg>\n";
}

}  // namespace tessera::report
