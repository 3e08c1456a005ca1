// Rotary position embedding (Su et al., RoFormer, 2021) in the half-split form of Hugging Face's
// Llama.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

namespace tessera::kernels {

/// How angles are stretched beyond the sequences of the first training; the defaults are
/// Llama 3.1's.
///   linear    all by `factor`
///   dynamic   (NTK) theta grows once the sequence is longer than the original one
///   yarn      slow dimensions by `factor`, fast ones not, a ramp between (Peng et al., YaRN, 2023)
///   llama3    the same by wavelength
///   longrope  each by a factor of its own, of one list or, once the sequence is longer than the
///             original one, of another (Ding et al., LongRoPE, 2024)
enum class RopeScalingType { linear, dynamic, yarn, llama3, longrope };

struct RopeScaling {
  RopeScalingType type = RopeScalingType::llama3;
  double factor = 8;
  int64_t original_max_seq_len = 8192;               ///< all but linear
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;  ///< yarn: turns within the original length, of the ramp
  bool truncate = true;                  ///< yarn: the ramp begins and ends at whole dimensions
  double attention_factor = 1;           ///< yarn, longrope: of cos and sin
  std::vector<double> short_factors, long_factors;  ///< longrope: [E / 2] each
};

struct RotaryTablesOptions {
  double theta = 10000;
  std::optional<RopeScaling> scaling;
  int64_t first_position = 0;  ///< of the `seq_len` positions
};

/// {cos, sin}, each [seq_len, head_dim] float32, the two halves alike; step for step as
/// transformers computes them in float32 (modeling_rope_utils), so that the bits agree. With
/// dynamic scaling and longrope the last of the positions counts as the length: longer tables begin
/// differently. Throws c10::ValueError on an odd or non-positive head_dim.
std::tuple<at::Tensor, at::Tensor> rotary_tables(int64_t seq_len, int64_t head_dim,
                                                 const RotaryTablesOptions& options = {});

/// x * cos + rotate_half(x) * sin, out of place and contiguous. x [B, T, H, E], any strides with a
/// contiguous last dimension (else copied); cos, sin float32: [>= T, E], positions 0 .. T - 1 are
/// used, or [B, T, E], those of each token. Saves the tables only. Throws c10::ValueError on shapes
/// that do not fit.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace tessera::kernels
