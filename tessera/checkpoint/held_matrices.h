// Tensors of float32 that were computed and stand in memory.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

class HeldMatrices : public TensorSource {
 public:
  /// `path`: for messages.
  explicit HeldMatrices(std::filesystem::path path) : TensorSource(std::move(path)) {}

  /// `values`: row-major, as many as the shape has.
  void add(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    tensors_[name] = {DType::f32, std::move(shape)};
    values_[name] = std::move(values);
  }

 private:
  void read_part(const std::string& name, const TensorInfo& /*info*/, int64_t begin,
                 std::span<std::byte> destination) const override {
    std::memcpy(destination.data(), values_.at(name).data() + begin, destination.size());
  }

  std::map<std::string, std::vector<float>> values_;
};

}  // namespace tessera::checkpoint
