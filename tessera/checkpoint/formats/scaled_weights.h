// Matrices of 8 bits with scales as floats: DeepSeek-V3's blocks, and the parts of compressed-tensors, fbgemm and AutoFP8.
#pragma once

#include <memory>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Does a tensor X of 8-bit floats or int8 have an X_scale_inv or X_scale?
bool has_scaled_weights(const TensorSource& stored);

/// The same tensors, but X [out, in] of float32: each number times its scale, whose table is no tensor of
/// its own. X_scale_inv or X_scale [ceil(out / rows), ceil(in / columns)] is of blocks: weight_block_size or
/// block_structure in the folder's config.json, else 128 x 128. X_scale may also be one scale, one a row
/// [out] or [out, 1], or [out, groups] of a power of two of columns each. Scales are read with the numbers. UserError: a table of another size
/// or dtype, a block that cannot be, a zero point or second scale beside it.
std::unique_ptr<TensorSource> unscaled(std::unique_ptr<Safetensors> stored);

}  // namespace tessera::checkpoint
