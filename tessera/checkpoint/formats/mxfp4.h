// Weights of 4-bit floats with a scale for each 32, as gpt-oss's files have them, as floats.
#pragma once

#include <memory>
#include <string>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Are there codes X_blocks with scales X_scales, or X_blocks where config.json says mxfp4?
bool has_mxfp4(const Safetensors& stored);

/// The same tensors, but X_blocks [.., outputs, inputs] of float32: each code of its bytes
/// [.., outputs, inputs / 32, 16], the low half of a byte first, times 2^(s - 127) for the byte s of
/// X_scales [.., outputs, inputs / 32], which is no tensor of its own; s = 255 is NaN (OCP
/// Microscaling Formats 1.0, 2023: E2M1, E8M0). The name stays: transformers' own X of floats is
/// [.., inputs, outputs]. Scales are read with the codes. UserError: scales that are missing, another
/// dtype, sizes that do not fit, an X beside X_blocks.
std::unique_ptr<TensorSource> from_mxfp4(std::unique_ptr<Safetensors> stored);

/// Is this a tensor that from_mxfp4 made?
bool was_mxfp4(const std::string& name, const TensorInfo& info);

}  // namespace tessera::checkpoint
