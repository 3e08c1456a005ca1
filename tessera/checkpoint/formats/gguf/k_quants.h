// Values into blocks of 256 with scales of their groups: Q4_K, Q5_K and Q6_K (blocks.h has the layout).
//
// A group's scale (Q4_K, Q5_K: and minimum) is searched: some twenty are tried around the one that reaches the group's extremes, each
// with the values rounded by it and then fitted to these by weighted least squares; the one of least weighted error is kept. The
// arithmetic is float32 in the order of ggml's reference, so the bytes are the same.
#pragma once

#include <cstddef>

namespace tessera::checkpoint {

/// 256 values into 144 bytes. Weights: the root mean square of the group of 32 and a value's own
/// magnitude, added.
void write_q4_k(const float* values, std::byte* block);

/// 256 values into 176 bytes, in the same way.
void write_q5_k(const float* values, std::byte* block);

/// 256 values into 210 bytes. Weights: a value's square, in its group of 16.
void write_q6_k(const float* values, std::byte* block);

}  // namespace tessera::checkpoint
