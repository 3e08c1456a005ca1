#include "tessera/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

#include "tessera/report/number.h"

namespace tessera::report {
namespace {

constexpr double kWidth = 900, kHeight = 480;
constexpr double kLeft = 72, kRight = 826, kTop = 88, kBottom = 428;  // of the plot

// Viewers that ignore media queries show the light colours.
constexpr std::string_view kStyle = R"(<style>
text{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;font-size:12px;fill:#57606a}
.back{fill:#fff}.title{font-size:18px;font-weight:600;fill:#1f2328}.grid{stroke:#e6e8eb}.axis{stroke:#8c959f}
.raw{stroke:#4c8dd6;stroke-opacity:.38;fill:none}.mean{stroke:#1764b5;fill:none;stroke-width:2.4}
.line{stroke:#d9730d;fill:none;stroke-width:1.4;stroke-dasharray:4 3}.dot{fill:#d9730d;stroke:#fff;stroke-width:1.5}
.train{fill:#1764b5;font-weight:600}.validation{fill:#c2620a;font-weight:600}
.bad{stroke:#cf222e;stroke-dasharray:3 3}.badtext{fill:#cf222e}
@media(prefers-color-scheme:dark){text{fill:#9198a1}.back{fill:#0d1117}.title{fill:#f0f6fc}.grid{stroke:#262c34}
.axis{stroke:#656c76}.raw{stroke:#58a6ff}.mean{stroke:#79b8ff}.line{stroke:#f0883e}.dot{fill:#f0883e;stroke:#0d1117}
.train{fill:#79b8ff}.validation{fill:#f0883e}.bad{stroke:#ff7b72}.badtext{fill:#ff7b72}}
</style>
)";

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

std::string shortened(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

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
  for (size_t i = 0; i < y_ticks.size(); ++i) {
    const double y = axes.y(y_ticks[i]);
    out += fmt::format(R"(<path class="grid" d="M{:.0f} {:.1f}H{:.0f}"/>)", kLeft, y, kRight);
    out += fmt::format(R"(<text x="{:.0f}" y="{:.1f}" text-anchor="end">{}</text>)"
                       "\n",
                       kLeft - 10, y + 4, y_labels[i]);
  }
  const auto x_ticks = linear_ticks(axes.x_low, axes.x_high, 9, true);
  const auto x_labels = tick_labels(x_ticks);
  for (size_t i = 0; i < x_ticks.size(); ++i) {
    const double x = axes.x(x_ticks[i]);
    out += fmt::format(R"(<path class="axis" d="M{:.1f} {:.0f}v5"/>)", x, kBottom);
    out += fmt::format(R"(<text x="{:.1f}" y="{:.0f}" text-anchor="middle">{}</text>)"
                       "\n",
                       x, kBottom + 20, x_labels[i]);
  }
  out += fmt::format(R"(<path class="axis" d="M{:.0f} {:.0f}H{:.0f}"/>)", kLeft, kBottom, kRight);
  out += fmt::format(R"(<text x="{:.0f}" y="{:.0f}" text-anchor="middle">step</text>)",
                     (kLeft + kRight) / 2, kBottom + 40);
  out += fmt::format(R"(<text x="{:.0f}" y="{:.0f}" text-anchor="end">loss{}</text>)"
                     "\n",
                     kLeft - 10, kTop - 12, axes.log_y ? " (log)" : "");
  return out;
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

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // XML forbids control characters
    }
  }
  return out;
}

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

  std::string out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" role="img">)"
      "\n<title>{2}</title>\n",
      kWidth, kHeight, escaped(options.title));
  out += kStyle;
  out += fmt::format(R"(<rect class="back" width="{:.0f}" height="{:.0f}"/>)", kWidth, kHeight);
  out += fmt::format(R"(<text class="title" x="24" y="34">{}</text>)",
                     escaped(shortened(options.title, 80)));
  out += fmt::format(R"(<text x="24" y="54">{}</text>)"
                     "\n",
                     escaped(shortened(options.subtitle, 130)));
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
