// Folders of Hugging Face whose linear layers bitsandbytes quantised, as their dequantised weights.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// The tensors of a folder or file of safetensors. A weight that bitsandbytes stored in 4 bits
/// (`X.weight` with .absmax, .quant_map, .quant_state.bitsandbytes__nf4 or __fp4, and nested ones) or
/// in 8 (`X.weight` with X.SCB) is `X.weight` [out, in] of float32, dequantised as it is read, to the
/// bit: quantised again with the same type and block it has the same codes (double quantisation:
/// with plain nf4, since what it did to absmax is in them). What belongs to it is no tensor of its
/// own. 8-bit floats with scales of blocks are floats, too (scaled_weights.h), and so are 4-bit ones
/// (mxfp4.h). UserError: a type that is unknown, states that are missing, cut or of another size.
std::unique_ptr<TensorSource> open_safetensors(const std::filesystem::path& path);

/// A config.json's content for such tensors: what it says of bitsandbytes, or of 8-bit or
/// 4-bit floats, is left out.
nlohmann::json dequantised_config(nlohmann::json config);

}  // namespace tessera::checkpoint
