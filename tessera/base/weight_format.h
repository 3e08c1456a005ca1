// How a linear layer's weight is kept when it is not stored as numbers of its own: codes of 4 or 8
// bits and what undoes them, as bitsandbytes has them (Dettmers et al., QLoRA, 2023; LLM.int8(), 2022).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/texts.h"

namespace tessera {

/// nf4, fp4: 4 bits and an absmax of 32 bits for each block of consecutive elements; nf4_double: the
/// absmax in 8 bits, whose scale is common to 256 of them; int8: 8 bits and an absmax for each row.
enum class WeightFormat { as_stored, nf4, nf4_double, fp4, int8 };
template <>
inline constexpr auto kTexts<WeightFormat> =
    std::to_array<std::string_view>({"as_stored", "nf4", "nf4_double", "fp4", "int8"});

/// How many absmax of 8 bits share a scale.
inline constexpr int64_t kNestedBlock = 256;

/// A weight [out, in] in a format; `block`: of 4-bit formats.
struct QuantisedShape {
  WeightFormat format = WeightFormat::nf4;
  int64_t out = 0, in = 0;
  int64_t block = 64;

  bool operator==(const QuantisedShape&) const = default;
};

/// One tensor of bytes of a quantised weight. Floats are kept as four bytes each, so that a weight
/// is of one type and no cast touches it.
struct QuantisedPart {
  std::string name;            ///< within the layer
  std::vector<int64_t> shape;  ///< in bytes
  int64_t in_features = 0;   ///< of so many an index along dim 1 is; 0: the part cannot be divided
  bool divides_out = false;  ///< dim 0 are the output features
};

/// The parts in the order: codes, absmax, and of nf4_double nested absmax and offset. Blocks that run
/// over the end of a row (in % block != 0) make codes and absmax one row, which nothing divides.
std::vector<QuantisedPart> quantised_parts(const QuantisedShape& shape);

/// Bytes of all parts: 4.127 bits for each weight with nf4_double.
int64_t quantised_bytes(const QuantisedShape& shape);

}  // namespace tessera
