// Dropout whose numbers do not depend on how a batch is divided.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/kernels/flat.h"

namespace tessera::kernels {

/// x / (1 - probability), or 0 for elements drawn with `probability` (Srivastava et al., JMLR
/// 2014). Element i stands at key.first_position + i (row-major), and whether it stays is a
/// function of the key and that position: the rows of a batch drop the same elements alone,
/// together, or on other ranks. Saves nothing: backward draws again. float32, bfloat16 and float16 on a
/// device with kernels in one pass each way, other tensors in plain operators with the same numbers. Throws
/// c10::ValueError unless 0 <= probability < 1.
at::Tensor dropout(const at::Tensor& x, double probability, const DropoutKey& key);

}  // namespace tessera::kernels
