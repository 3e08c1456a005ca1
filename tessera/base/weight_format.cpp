#include "tessera/base/weight_format.h"

#include <functional>
#include <numeric>

namespace tessera {
namespace {

constexpr int64_t kFloatBytes = 4;

int64_t parts_of(int64_t whole, int64_t size) { return (whole + size - 1) / size; }

}  // namespace

std::vector<QuantisedPart> quantised_parts(const QuantisedShape& shape) {
  if (shape.format == WeightFormat::int8) {
    return {{"weight", {shape.out, shape.in}, 1, true},
            {"weight_absmax", {shape.out, kFloatBytes}, 0, true}};
  }
  const int64_t elements = shape.out * shape.in, blocks = parts_of(elements, shape.block);
  const bool nested = shape.format == WeightFormat::nf4_double;
  std::vector<QuantisedPart> parts;
  if (shape.in % shape.block == 0) {
    const int64_t in_row = shape.in / shape.block;
    parts = {{"weight", {shape.out, shape.in / 2}, 2, true},
             {"weight_absmax", {shape.out, in_row}, shape.block, true}};
  } else {
    parts = {{"weight", {parts_of(elements, 2)}}, {"weight_absmax", {blocks}}};
  }
  if (nested) {
    parts.push_back({"weight_nested_absmax", {parts_of(blocks, kNestedBlock), kFloatBytes}});
    parts.push_back({"weight_nested_offset", {1, kFloatBytes}});
  } else {
    parts.back().shape.push_back(kFloatBytes);
  }
  return parts;
}

int64_t quantised_bytes(const QuantisedShape& shape) {
  int64_t bytes = 0;
  for (const auto& part : quantised_parts(shape)) {
    bytes += std::accumulate(part.shape.begin(), part.shape.end(), int64_t{1}, std::multiplies<>());
  }
  return bytes;
}

}  // namespace tessera
