// AdamW that keeps 8 bits of each moment (Dettmers et al., 8-bit Optimizers via Block-wise
// Quantization, ICLR 2022), with the codes and the arithmetic of bitsandbytes on a CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/kernels/flat.h"

namespace tessera::kernels {

/// A moment of n numbers: codes [n] uint8, places in a dynamic_map (quantised.h), and absmax
/// [ceil(n / 256)] float32, by which each block of 256 was divided. A block of zeros has absmax 0.
struct BlockCodes {
  at::Tensor codes, absmax;
};

/// The codes of `values` [n], float32 on the CPU. bitsandbytes' quantize_blockwise in blocks of 256.
BlockCodes block_codes(const at::Tensor& values, bool is_signed);

/// The values of a moment, float32 [n], on its device.
at::Tensor block_values(const BlockCodes& moment, bool is_signed);

/// One update of a slice: both moments are read from their codes (the mean signed, the mean square
/// not), changed in float32 and coded anew; the parameter moves by the moments before they are coded.
/// All 1-D, contiguous, of one device: parameter and gradient [n], each float32 or bfloat16;
/// n is a multiple of 256. `copy` as for adamw. On the CPU in one pass, the same bits for any number
/// of threads and any instruction set; elsewhere adamw8bit_reference.
void adamw8bit(const at::Tensor& parameter, const at::Tensor& gradient, const BlockCodes& exp_avg,
               const BlockCodes& exp_avg_sq, const AdamWOptions& options,
               const at::Tensor& copy = {});

/// The same by LibTorch's operators, on any device; without rounding at random.
void adamw8bit_reference(const at::Tensor& parameter, const at::Tensor& gradient,
                         const BlockCodes& exp_avg, const BlockCodes& exp_avg_sq,
                         const AdamWOptions& options, const at::Tensor& copy = {});

}  // namespace tessera::kernels
