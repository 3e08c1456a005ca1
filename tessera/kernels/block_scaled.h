// Numbers of few bits in blocks that share a factor.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/kernels/flat.h"

namespace tessera::kernels {

/// n numbers in blocks of 256, on one device: `numbers` [n], float8_e4m3fn or float16, times `factors`
/// [n / 256], float32, powers of two. Zero throughout is a block of zeros.
struct BlockScaled {
  at::Tensor numbers, factors;

  /// Blocks [begin, end).
  BlockScaled blocks(int64_t begin, int64_t end) const;
};

/// The numbers, float32 [n].
at::Tensor unscaled(const BlockScaled& from);

/// Rounds `values`, float32 [n], so that the largest magnitude of each block comes near the end of the
/// type's range, which in E4M3 goes down to 2^-18 of it and in float16 to 2^-39. To nearest, or at random by
/// `rounding` (on a device that has kernels). Cost: a few passes.
void scale_into(const at::Tensor& values, const BlockScaled& to,
                const std::optional<StochasticRounding>& rounding = {});

}  // namespace tessera::kernels
