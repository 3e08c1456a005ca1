// Stored numbers from one floating-point type to another, without LibTorch.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "tessera/checkpoint/dtype.h"

namespace tessera::checkpoint {

bool is_float(DType dtype);  ///< f64, f32, f16 or bf16: what values can be converted between

/// May values of `from` become `to`? Any to itself, floats to floats.
bool is_convertible(DType from, DType to);

/// The values `source` of type `from` as `to` into `destination`, which has as many elements.
/// Rounds to the nearest, ties to even, once (f64 to 16 bits too); beyond the largest finite value
/// to infinity; NaN stays NaN with its sign. Any alignment. Assertion: is_convertible, equal
/// counts.
void convert_values(std::span<const std::byte> source, DType from, std::span<std::byte> destination,
                    DType to);

/// The same for values of the tensor `name` that are kept. UserError: a number became infinity, as f16 ends at 65504.
void convert_tensor(const std::string& name, std::span<const std::byte> source, DType from,
                    std::span<std::byte> destination, DType to);

}  // namespace tessera::checkpoint
