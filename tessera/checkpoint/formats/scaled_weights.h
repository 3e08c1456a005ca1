// Matrices of 8-bit floats with a scale for each block, as DeepSeek-V3's files have them, as floats.
#pragma once

#include <memory>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Does a tensor X of e4m3 have an X_scale_inv?
bool has_scaled_weights(const TensorSource& stored);

/// The same tensors, but X [out, in] of float32: each number times its block's scale, whose table
/// X_scale_inv [ceil(out / rows), ceil(in / columns)] is no tensor of its own. The block is that of
/// weight_block_size in the folder's config.json, else 128 x 128. Scales are read with the numbers.
/// UserError: a table of another size or dtype, a block that cannot be.
std::unique_ptr<TensorSource> unscaled(std::unique_ptr<Safetensors> stored);

}  // namespace tessera::checkpoint
