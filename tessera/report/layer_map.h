// A picture of one number for each layer and step of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::report {

/// values[i][j] is of layers[i] in steps[j].
struct LayerMap {
  std::vector<int64_t> steps, layers;
  std::vector<std::vector<double>> values;

  void add(int64_t step, const std::vector<double>& of_layers);  ///< one for each of `layers`
  bool empty() const { return steps.empty(); }
};

struct LayerMapOptions {
  std::string title, subtitle;
  std::string measure;       ///< what the number is called
  double least_darkest = 0;  ///< the darkest shade stands for this at least
};

/// A standalone SVG of 900 x 480: a row for each layer, steps to the right, darker where the number is
/// larger (the mean of neighbouring steps where there are many). Some 4000 cells at the most.
std::string layer_map_svg(const LayerMap& map, const LayerMapOptions& options);

}  // namespace tessera::report
