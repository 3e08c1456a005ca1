#include "tessera/report/histogram.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/report/number.h"
#include "tessera/report/plot_frame.h"

namespace tessera::report {

Histogram histogram_of(std::span<const int64_t> values, int64_t max_bins) {
  Histogram histogram;
  if (values.empty()) return histogram;
  const auto [least, largest] = std::ranges::minmax(values);
  const auto num_bins = [&, least = least, largest = largest](int64_t width) {
    return largest / width - least / width + 1;
  };
  for (int64_t power = 1; num_bins(histogram.width) > max_bins; power *= 10) {
    for (const int64_t digit : {1, 2, 5}) {
      histogram.width = digit * power;
      if (num_bins(histogram.width) <= max_bins) break;
    }
  }
  const int64_t width = histogram.width;
  histogram.first = least / width * width;
  histogram.counts.resize(static_cast<size_t>(num_bins(width)));
  for (const auto value : values) {
    ++histogram.counts[static_cast<size_t>((value - histogram.first) / width)];
  }
  return histogram;
}

std::string histogram_text(const Histogram& histogram, int columns) {
  const auto& counts = histogram.counts;
  if (counts.empty()) return "";
  const auto range = [&](size_t bin) {
    const auto first = histogram.begin_of(bin);
    return histogram.width == 1 ? with_commas(first)
                                : fmt::format("{} .. {}", with_commas(first),
                                              with_commas(first + histogram.width - 1));
  };
  const auto most = std::ranges::max(counts);
  const size_t left = range(counts.size() - 1).size(), middle = with_commas(most).size();
  const auto room = std::max<int64_t>(10, columns - static_cast<int64_t>(left + middle) - 4);
  std::string out;
  for (size_t bin = 0; bin < counts.size(); ++bin) {
    // Whatever occurs is seen.
    const auto length = (counts[bin] * room + most - 1) / most;
    out += fmt::format("{:>{}}  {:>{}}{}{}\n", range(bin), left, with_commas(counts[bin]), middle,
                       length > 0 ? "  " : "", std::string(static_cast<size_t>(length), '#'));
  }
  return out;
}

std::string histogram_svg(const Histogram& histogram, std::string_view title,
                          std::string_view subtitle, std::string_view unit) {
  auto out = begin_plot(title, subtitle);
  const auto& counts = histogram.counts;
  const auto bins = static_cast<double>(std::max<size_t>(1, counts.size()));
  const auto most =
      counts.empty() ? 1.0 : static_cast<double>(std::max<int64_t>(1, std::ranges::max(counts)));
  const double per_bin = (kPlotRight - kPlotLeft) / bins;
  const auto y_of = [&](double count) {
    return kPlotBottom - count / (1.05 * most) * (kPlotBottom - kPlotTop);
  };
  const auto y_ticks = linear_ticks(0, 1.05 * most, 8, /*integral=*/true);
  const auto y_labels = tick_labels(y_ticks);
  for (size_t i = 0; i < y_ticks.size(); ++i) out += y_tick(y_of(y_ticks[i]), y_labels[i]);
  const auto first = static_cast<double>(histogram.first);
  const auto all = bins * static_cast<double>(histogram.width);
  const auto x_ticks = linear_ticks(first, first + all, 9, /*integral=*/true);
  const auto x_labels = tick_labels(x_ticks);
  for (size_t i = 0; i < x_ticks.size(); ++i)
    out += x_tick(kPlotLeft + (x_ticks[i] - first) / all * (kPlotRight - kPlotLeft), x_labels[i]);
  for (size_t bin = 0; bin < counts.size(); ++bin) {
    if (counts[bin] == 0) continue;
    const double top = y_of(static_cast<double>(counts[bin]));
    out += fmt::format(R"(<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>)"
                       "\n",
                       kPlotLeft + per_bin * static_cast<double>(bin) + 0.1 * per_bin, top,
                       0.8 * per_bin, kPlotBottom - top);
  }
  return out + axis_names(unit, "rows") + "</svg>\n";
}

}  // namespace tessera::report
