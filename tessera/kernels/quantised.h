// Weights of 4 and 8 bits: the codes, absmax and nested states of bitsandbytes, to the bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "tessera/base/stripe.h"
#include "tessera/base/weight_format.h"

namespace tessera::kernels {

/// A weight [out, in] in a format: the parts of `quantised_parts`, each a tensor of bytes.
struct Quantised {
  QuantisedShape shape;
  at::Tensor codes, absmax;
  at::Tensor nested_absmax, nested_offset;  ///< of nf4_double
  /// Which of the whole weight's absmax these are, where tensor parallelism has divided it: nested
  /// blocks are of the whole.
  Stripe absmax_stripe;
};

/// `weight` [out, in] of any floating-point dtype, on the host -> its parts; runs on the threads of
/// LibTorch. Codes of 4 bits: the nearest of 16 values (QLoRA, appendix E) to x / absmax of its
/// block; `nf4_double`: absmax less its mean, in blocks of 256 to the nearest of 256 dynamic values
/// (Dettmers, 8-Bit Approximations, 2016); int8: round(127 x / absmax of its row).
/// The mean is that of at::mean up to 32,768 numbers, which more are cut into and added in double:
/// LibTorch's own depends on the number of threads from there on.
Quantised quantise(const at::Tensor& weight, WeightFormat format, int64_t block = 64);

/// The same of a weight that is read a part at a time, so that it is never whole: `read` writes its
/// elements begin .. (row-major) into a part [n] of float32, on several threads.
using ReadPart = std::function<void(int64_t begin, const at::Tensor& part)>;
Quantised quantise(const QuantisedShape& shape, const ReadPart& read);

/// [out, in] in `dtype`, rounded once from float32, on the device of the parts.
at::Tensor dequantise(const Quantised& weight, at::ScalarType dtype);
/// Rows first .. last of it in float32, and the sum of each row's squares [out], which never has the
/// matrix whole.
at::Tensor dequantise_rows(const Quantised& weight, int64_t first, int64_t last);
at::Tensor squared_row_norms(const Quantised& weight);
/// The same by LibTorch's operators: what the tests compare with, and what other devices run.
at::Tensor dequantise_reference(const Quantised& weight, at::ScalarType dtype);

/// [16] What each code of a format of 4 bits stands for, as a part of its block's absmax.
at::Tensor values_of_codes(WeightFormat format);

/// [256] ascending: bitsandbytes' dynamic map of 8 bits. The signed one undoes nested absmax and the
/// first moments of `adamw8bit`, the other one its second moments.
const at::Tensor& dynamic_map(bool is_signed);
/// [65536] The place of the nearest value in a dynamic map for each of as many numbers from -1 to 1.
/// The peer rounds to one of these first, and so do we for the same codes: dynamic_place.
const uint8_t* dynamic_places(bool is_signed);
inline uint8_t dynamic_place(const uint8_t* places, float x) {
  return places[static_cast<int>((x + 1) * 32767.5f + 0.5f)];  // NOLINT(bugprone-*)
}

}  // namespace tessera::kernels
