#include "tessera/checkpoint/formats/scaled_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/strict_json.h"
#include "tessera/checkpoint/convert_dtype.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kScales = "_scale_inv";

/// What each code of e4m3 stands for (OCP 8-bit Floating Point, 2023: no infinities).
const std::array<float, 256>& e4m3_values() {
  static const auto values = [] {
    std::array<float, 256> table{};
    for (size_t code = 0; code < table.size(); ++code) {
      const int exponent = static_cast<int>(code >> 3) & 15, mantissa = static_cast<int>(code & 7);
      float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      if (exponent == 15 && mantissa == 7) value = std::numeric_limits<float>::quiet_NaN();
      table[code] = code >= 128 ? -value : value;
    }
    return table;
  }();
  return values;
}

struct Block {
  int64_t rows = 128, columns = 128;
};

/// weight_block_size of the config.json that lies with the tensors.
Block block_of(const fs::path& path) {
  const auto config = (fs::is_directory(path) ? path : path.parent_path()) / "config.json";
  if (!fs::exists(config)) return {};
  const auto json = parse_strict_json(config, read_file(config));
  const auto said = json.value("quantization_config", nlohmann::json::object());
  if (!said.is_object() || !said.contains("weight_block_size")) return {};
  const auto& size = said["weight_block_size"];
  const auto fits = [](const nlohmann::json& number) {
    return number.is_number_unsigned() && number >= 1 && number <= 1 << 20;
  };
  if (!size.is_array() || size.size() != 2 || !fits(size[0]) || !fits(size[1])) {
    user_error("{}: weight_block_size: expected two whole numbers in [1, {}], got {}",
               config.string(), 1 << 20, size.dump());
  }
  return {size[0].get<int64_t>(), size[1].get<int64_t>()};
}

class ScaledSource : public TensorSource {
 public:
  explicit ScaledSource(std::unique_ptr<Safetensors> stored)
      : TensorSource(stored->path()), stored_(std::move(stored)), block_(block_of(path_)) {
    tensors_ = stored_->tensors();
    for (const auto& [name, info] : stored_->tensors()) {
      const auto scales = name + std::string(kScales);
      if (info.dtype != DType::f8_e4m3 || !stored_->contains(scales)) continue;
      check(scales, info);
      tensors_.erase(scales);
      tensors_[name].dtype = DType::f32;
    }
  }

 private:
  static int64_t blocks(int64_t size, int64_t of) { return (size + of - 1) / of; }

  void check(const std::string& scales, const TensorInfo& weight) const {
    if (weight.shape.size() != 2) {
      user_error("{}: '{}': expected scales of a matrix, got those of a shape [{}]", path_.string(),
                 scales, fmt::join(weight.shape, ", "));
    }
    const std::vector expected{blocks(weight.shape[0], block_.rows),
                               blocks(weight.shape[1], block_.columns)};
    const auto& found = stored_->info(scales);
    if (found.shape == expected && is_float(found.dtype)) return;
    user_error("{}: '{}': expected floats [{}], a scale for each block of {} x {}, got {} [{}]",
               path_.string(), scales, fmt::join(expected, ", "), block_.rows, block_.columns,
               dtype_name(found.dtype), fmt::join(found.shape, ", "));
  }

  /// The scales of rows of blocks [begin, end).
  std::vector<float> scales_of(const std::string& name, int64_t begin, int64_t end) const {
    const auto scales = name + std::string(kScales);
    const auto& info = stored_->info(scales);
    const auto count = static_cast<size_t>((end - begin) * info.shape[1]);
    std::vector<std::byte> bytes(count * static_cast<size_t>(dtype_bytes(info.dtype)));
    stored_->read(scales, begin * info.shape[1], bytes);
    std::vector<float> values(count);
    convert_values(bytes, info.dtype, std::as_writable_bytes(std::span(values)), DType::f32);
    return values;
  }

  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override {
    if (stored_->info(name).dtype == info.dtype) return stored_->read(name, begin, destination);
    const auto count = static_cast<int64_t>(destination.size() / sizeof(float));
    if (count == 0) return;
    std::vector<uint8_t> codes(static_cast<size_t>(count));
    stored_->read(name, begin, std::as_writable_bytes(std::span(codes)));
    const int64_t width = info.shape[1], across = blocks(width, block_.columns);
    const int64_t first = begin / width / block_.rows;
    const int64_t last = (begin + count - 1) / width / block_.rows;
    const auto scales = scales_of(name, first, last + 1);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (begin + i) / width, column = (begin + i) % width;
      const auto at = (row / block_.rows - first) * across + column / block_.columns;
      const float value =
          e4m3_values()[codes[static_cast<size_t>(i)]] * scales[static_cast<size_t>(at)];
      std::memcpy(destination.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
    }
  }

  std::unique_ptr<Safetensors> stored_;
  Block block_;
};

}  // namespace

bool has_scaled_weights(const TensorSource& stored) {
  return std::ranges::any_of(stored.tensors(), [&](const auto& item) {
    return item.second.dtype == DType::f8_e4m3 &&
           stored.contains(item.first + std::string(kScales));
  });
}

std::unique_ptr<TensorSource> unscaled(std::unique_ptr<Safetensors> stored) {
  return std::make_unique<ScaledSource>(std::move(stored));
}

}  // namespace tessera::checkpoint
