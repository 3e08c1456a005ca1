// Two stored sets of tensors, compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// A tensor that is not the same in both.
struct TensorDifference {
  std::string name;
  TensorInfo a, b;
  int64_t num_different = 0;  ///< elements
  /// Largest |a - b|; infinity where one is NaN; NaN: not compared (8-bit floats, other shapes).
  double max_difference = 0;
};

struct Differences {
  std::vector<std::string> only_a, only_b;  ///< names
  std::vector<TensorDifference> tensors;
  int64_t num_equal = 0;  ///< tensors

  bool any() const { return !only_a.empty() || !only_b.empty() || !tensors.empty(); }
};

/// Tensors of the same name are the same if dtype and shape are and no element differs by more than
/// `tolerance`; two NaNs are equal, and so are 0 and -0. Floats of two dtypes are compared in
/// value, too. Memory: a few parts.
Differences diff(const TensorSource& a, const TensorSource& b, double tolerance);

}  // namespace tessera::checkpoint
