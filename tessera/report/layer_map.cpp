#include "tessera/report/layer_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tessera/report/number.h"
#include "tessera/report/plot_frame.h"
#include "tessera/report/svg.h"

namespace tessera::report {
namespace {

constexpr int kShades = 10;
constexpr size_t kMostCells = 4000, kMostColumns = 200;

/// Means of `values` over columns that share them evenly.
std::vector<double> in_columns(const std::vector<double>& values, size_t num_columns) {
  std::vector<double> means;
  for (size_t i = 0; i < num_columns; ++i) {
    const size_t begin = i * values.size() / num_columns;
    const size_t end = (i + 1) * values.size() / num_columns;
    const auto first = values.begin() + static_cast<ptrdiff_t>(begin);
    const auto last = values.begin() + static_cast<ptrdiff_t>(end);
    means.push_back(std::accumulate(first, last, 0.0) / static_cast<double>(end - begin));
  }
  return means;
}

/// All cells of one shade as one path.
using Shades = std::map<int, std::string>;

std::string drawn(const Shades& shades) {
  std::string out;
  for (const auto& [shade, path] : shades) {
    if (shade == 0) continue;
    out += fmt::format(R"(<path class="train" fill-opacity="{:.2f}" d="{}"/>)"
                       "\n",
                       static_cast<double>(shade) / kShades, path);
  }
  return out;
}

/// What the shades mean, above the plot.
std::string key_of_shades(const std::string& measure, double darkest) {
  constexpr double kWidth = 18;
  double x = kPlotRight - kWidth * (kShades + 1) - 50;
  auto out = fmt::format(R"(<text x="{:.0f}" y="{:.0f}" text-anchor="end">{} 0</text>)", x - 8,
                         kPlotTop - 12, measure);
  for (int shade = 0; shade <= kShades; ++shade, x += kWidth) {
    out += fmt::format(
        R"(<rect class="train" fill-opacity="{:.2f}" x="{:.0f}" y="{:.0f}" width="{:.0f}" height="12"/>)",
        static_cast<double>(shade) / kShades, x, kPlotTop - 22, kWidth);
  }
  return out + fmt::format(R"(<text x="{:.0f}" y="{:.0f}">{:.2g}</text>)"
                           "\n",
                           x + 8, kPlotTop - 12, darkest);
}

}  // namespace

void LayerMap::add(int64_t step, const std::vector<double>& of_layers) {
  if (values.empty()) values.resize(layers.size());
  steps.push_back(step);
  for (size_t i = 0; i < layers.size(); ++i) values[i].push_back(of_layers[i]);
}

std::string layer_map_svg(const LayerMap& map, const LayerMapOptions& options) {
  auto out = begin_plot(options.title, options.subtitle);
  const size_t rows = map.layers.size();
  if (map.empty()) return out + "</svg>\n";
  const size_t columns =
      std::min({map.steps.size(), kMostColumns, std::max<size_t>(10, kMostCells / rows)});
  std::vector<std::vector<double>> cells;
  double darkest = 0;
  for (size_t i = 0; i < rows; ++i) {
    cells.push_back(in_columns(map.values[i], columns));
    darkest = std::max(darkest, *std::ranges::max_element(cells.back()));
  }
  darkest = std::max(darkest, options.least_darkest);
  const double width = (kPlotRight - kPlotLeft) / static_cast<double>(columns);
  const double height = (kPlotBottom - kPlotTop) / static_cast<double>(rows);
  const double gap = std::min(2.0, height / 6);
  const size_t label_every = (rows + 19) / 20;
  Shades shades;
  for (size_t i = 0; i < rows; ++i) {
    const double top = kPlotTop + static_cast<double>(i) * height;
    for (size_t j = 0; j < columns; ++j) {
      const int shade = static_cast<int>(std::lround(kShades * cells[i][j] / darkest));
      shades[shade] +=
          fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z",
                      kPlotLeft + static_cast<double>(j) * width, top, width, height - gap, width);
    }
    if (i % label_every != 0) continue;
    const double middle = top + height / 2 + 4;
    out += fmt::format(R"(<text x="{:.0f}" y="{:.1f}" text-anchor="end">{}</text>)", kPlotLeft - 10,
                       middle, map.layers[i]);
    out += fmt::format(R"(<text class="train" x="{:.0f}" y="{:.1f}">{:.2f}</text>)",
                       kPlotRight + 10, middle, cells[i].back());
  }
  out += drawn(shades) + key_of_shades(options.measure, darkest);
  const auto first = static_cast<double>(map.steps.front());
  const auto last = static_cast<double>(map.steps.back());
  const auto ticks = linear_ticks(first, std::max(last, first + 1), 9, true);
  const auto labels = tick_labels(ticks);
  for (size_t i = 0; i < ticks.size(); ++i) {
    const double share = (ticks[i] - first + 0.5) / (last - first + 1);
    out += x_tick(kPlotLeft + share * (kPlotRight - kPlotLeft), labels[i]);
  }
  return out + axis_names("step", "layer") + "</svg>\n";
}

}  // namespace tessera::report
