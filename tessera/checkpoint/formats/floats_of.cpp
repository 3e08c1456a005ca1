#include "tessera/checkpoint/formats/floats_of.h"

#include <span>

#include "tessera/checkpoint/convert_dtype.h"

namespace tessera::checkpoint {

std::vector<float> floats_of(const TensorSource& source, const std::string& name, int64_t begin,
                             int64_t count) {
  const auto dtype = source.info(name).dtype;
  std::vector<std::byte> stored(static_cast<size_t>(count * dtype_bytes(dtype)));
  source.read(name, begin, stored);
  std::vector<float> values(static_cast<size_t>(count));
  convert_values(stored, dtype, std::as_writable_bytes(std::span(values)), DType::f32);
  return values;
}

std::vector<float> floats_of(const TensorSource& source, const std::string& name) {
  return floats_of(source, name, 0, source.info(name).num_elements());
}

}  // namespace tessera::checkpoint
