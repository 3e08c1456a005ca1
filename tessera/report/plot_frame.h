// What pictures have in common: their size, where the plot is, colours, title.
#pragma once

#include <string>
#include <string_view>

namespace tessera::report {

inline constexpr double kPlotWidth = 900, kPlotHeight = 480;
/// The plot's edges inside of the picture.
inline constexpr double kPlotLeft = 72, kPlotRight = 826, kPlotTop = 88, kPlotBottom = 428;

/// The beginning of a standalone SVG, in light or dark colours as the viewer prefers; the caller ends it
/// with "</svg>".
std::string begin_plot(std::string_view title, std::string_view subtitle);

/// The line below the plot with what it counts, and the same in words left above it.
std::string axis_names(std::string_view x, std::string_view y);

/// A grid line across the plot with its label; a mark below it with its label.
std::string y_tick(double y, std::string_view label);
std::string x_tick(double x, std::string_view label);

}  // namespace tessera::report
