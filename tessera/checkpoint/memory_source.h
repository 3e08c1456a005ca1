// Tensors that stand in memory, for tests.
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint::testing {

using Bytes = std::vector<std::byte>;

/// All bytes of a stored tensor.
inline Bytes read_all(const TensorSource& source, const std::string& name) {
  Bytes bytes(static_cast<size_t>(source.info(name).num_bytes()));
  source.read(name, 0, bytes);
  return bytes;
}

class MemorySource : public TensorSource {
 public:
  MemorySource() : TensorSource("memory") {}

  /// A tensor of given values.
  template <typename T>
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    tensors_[name] = {dtype, std::move(shape)};
    values_[name] = Bytes(bytes.begin(), bytes.end());
  }

  /// An fp32 tensor of consecutive numbers, other ones for each call.
  void add_counting(const std::string& name, const std::vector<int64_t>& shape) {
    std::vector<float> values(static_cast<size_t>(TensorInfo{DType::f32, shape}.num_elements()));
    std::iota(values.begin(), values.end(), next_);
    next_ += static_cast<float>(values.size());
    add(name, DType::f32, shape, values);
  }

 protected:
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override {
    std::memcpy(destination.data(), values_.at(name).data() + begin * dtype_bytes(info.dtype),
                destination.size());
  }

 private:
  std::map<std::string, Bytes> values_;
  float next_ = 1;
};

}  // namespace tessera::checkpoint::testing
