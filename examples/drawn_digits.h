// Drawn digits, for jobs that need images and nothing to download.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace drawn {

inline constexpr int64_t kDigitSize = 28;  ///< pixels along each side, as MNIST's

struct Digits {
  at::Tensor images;  ///< [B, 1, 28, 28] fp32, ink about 1 on paper about 0
  at::Tensor labels;  ///< [B] int64, 0 to 9
};

/// Digits [begin, end) of the endless sequence `seed`: strokes of random thickness, shifted,
/// scaled, sheared and turned, with noise. Digit i is a function of (seed, i) alone, so any number
/// of ranks sees the same ones in the same order. begin == end: an empty batch. Cost: about 50 us
/// each.
Digits draw_digits(uint64_t seed, int64_t begin, int64_t end);

}  // namespace drawn
