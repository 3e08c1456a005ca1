// Rotary position embedding (Su et al., RoFormer, 2021) in the half-split form of Hugging Face's
// Llama.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace tessera::kernels {

/// Llama 3's stretching of long wavelengths; the defaults are Llama 3.1's.
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
};

struct RotaryTablesOptions {
  double theta = 10000;
  std::optional<Llama3RopeScaling> llama3;
  int64_t first_position = 0;  ///< of the `seq_len` positions
};

/// {cos, sin}, each [seq_len, head_dim] float32, the two halves alike; step for step as
/// transformers computes them in float32 (modeling_rope_utils), so that the bits agree. Throws
/// c10::ValueError on an odd or non-positive head_dim.
std::tuple<at::Tensor, at::Tensor> rotary_tables(int64_t seq_len, int64_t head_dim,
                                                 const RotaryTablesOptions& options = {});

/// x * cos + rotate_half(x) * sin, out of place and contiguous. x [B, T, H, D], any strides with a
/// contiguous last dimension (else copied); cos, sin [>= T, D] float32, positions 0 .. T - 1 are
/// used. Saves the tables only. Throws c10::ValueError on shapes that do not fit.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace tessera::kernels
