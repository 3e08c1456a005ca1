// The parts of a quantised weight as the vector code takes them.
#pragma once

#include <vector>

#include "tessera/kernels/cpu/quantised_kernel.h"
#include "tessera/kernels/quantised.h"

namespace tessera::kernels {

const QuantisedTable& quantised_table();

/// A weight with some of its scales.
class ScaledCodes {
 public:
  /// With the scales that rows [first, last) need.
  ScaledCodes(const Quantised& weight, int64_t first, int64_t last);

  /// Rows first .. last, columns begin .. begin + count, of float or bfloat16.
  void dequantise(const TileArgs& tile, bool bfloat16) const;
  void multiply_few_rows(const FewRowsArgs& product) const;

 private:
  bool four_bits_;
  std::vector<float> scales_;
  FourBitArgs four_{};
  EightBitArgs eight_{};
};

}  // namespace tessera::kernels
