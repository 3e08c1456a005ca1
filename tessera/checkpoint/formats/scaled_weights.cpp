#include "tessera/checkpoint/formats/scaled_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
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

constexpr std::string_view kBlockScales = "_scale_inv";
constexpr std::string_view kScales = "_scale";
/// What would change the numbers in another way, beside a weight with scales.
constexpr std::string_view kUnknown[] = {"_scale_2", "_zero_point", "_scale_ub"};

bool is_code(DType dtype) {
  return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 || dtype == DType::i8;
}

/// The scales of a tensor that holds codes; "": it has none.
std::string scales_of(const TensorSource& stored, const std::string& name, DType dtype) {
  if (!is_code(dtype)) return "";
  for (const auto ending : {kBlockScales, kScales}) {
    auto scales = name + std::string(ending);
    if (stored.contains(scales)) return scales;
  }
  return "";
}

/// What each code stands for: of 8-bit floats (OCP 8-bit Floating Point, 2023: E4M3 has no infinities) or a whole number.
std::array<float, 256> values_of(DType dtype) {
  std::array<float, 256> table{};
  const int mantissa_bits = dtype == DType::f8_e4m3 ? 3 : 2,
            bias = dtype == DType::f8_e4m3 ? 7 : 15;
  const int steps = 1 << mantissa_bits, last = 127 >> mantissa_bits;
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code & 127) >> mantissa_bits, mantissa = code & (steps - 1);
    const int number = exponent == 0 ? mantissa : steps + mantissa;
    float value =
        std::ldexp(static_cast<float>(number), std::max(exponent, 1) - bias - mantissa_bits);
    if (exponent == last && dtype == DType::f8_e5m2) {
      value = std::numeric_limits<float>::infinity();
    }
    const bool is_nan =
        exponent == last && (dtype == DType::f8_e4m3 ? mantissa == 7 : mantissa > 0);
    if (is_nan) value = std::numeric_limits<float>::quiet_NaN();
    table[static_cast<size_t>(code)] = code >= 128 ? -value : value;
    if (dtype == DType::i8) {
      table[static_cast<size_t>(code)] = static_cast<float>(static_cast<int8_t>(code));
    }
  }
  return table;
}

struct Block {
  int64_t rows = 128, columns = 128;
};

/// The size of blocks in the config.json that lies with the tensors: weight_block_size, or compressed-tensors'
/// block_structure.
Block block_of(const fs::path& path) {
  const auto config = (fs::is_directory(path) ? path : path.parent_path()) / "config.json";
  if (!fs::exists(config)) return {};
  const auto json = parse_strict_json(config, read_file(config));
  const auto said = json.value("quantization_config", nlohmann::json::object());
  if (!said.is_object()) return {};
  auto size = said.value("weight_block_size", nlohmann::json());
  const auto groups = said.value("config_groups", nlohmann::json());
  for (const auto& group : groups.is_object() ? groups : nlohmann::json::object()) {
    const auto weights =
        group.is_object() ? group.value("weights", nlohmann::json()) : nlohmann::json();
    if (size.is_null() && weights.is_object())
      size = weights.value("block_structure", nlohmann::json());
  }
  if (size.is_null()) return {};
  const auto fits = [](const nlohmann::json& number) {
    return number.is_number_unsigned() && number >= 1 && number <= 1 << 20;
  };
  if (!size.is_array() || size.size() != 2 || !fits(size[0]) || !fits(size[1])) {
    user_error("{}: weight_block_size: expected two whole numbers in [1, {}], got {}",
               config.string(), 1 << 20, size.dump());
  }
  return {size[0].get<int64_t>(), size[1].get<int64_t>()};
}

/// Rectangles of a matrix that share a scale, and how many of them stand side by side.
struct Scales {
  std::string name;
  Block block;
  int64_t across = 1;
};

class ScaledSource : public TensorSource {
 public:
  explicit ScaledSource(std::unique_ptr<Safetensors> stored)
      : TensorSource(stored->path()), stored_(std::move(stored)), block_(block_of(path_)) {
    tensors_ = stored_->tensors();
    for (const auto& [name, info] : stored_->tensors()) {
      const auto scales = checkpoint::scales_of(*stored_, name, info.dtype);
      if (scales.empty()) continue;
      for (const auto ending : kUnknown) refuse_beside(name, ending);
      scales_.emplace(name, scales_for(scales, info));
      tensors_.erase(scales);
      tensors_[name].dtype = DType::f32;
    }
  }

 private:
  static int64_t blocks(int64_t size, int64_t of) { return (size + of - 1) / of; }

  void refuse_beside(const std::string& weight, std::string_view ending) const {
    const auto other = weight + std::string(ending);
    if (!stored_->contains(other)) return;
    user_error(
        "{}: '{}': expected one scale for each part of '{}', got more than that; store it "
        "as floats",
        path_.string(), other, weight);
  }

  /// The scales of a whole matrix, of each row, of groups of a row as long as a power of two, or of blocks, of which the last may be
  /// smaller.
  Scales scales_for(const std::string& scales, const TensorInfo& weight) const {
    check_matrix(scales, weight);
    const auto& found = stored_->info(scales);
    const int64_t rows = weight.shape[0], columns = weight.shape[1];
    auto shape = found.shape;
    if (shape.size() < 2) shape.resize(2, 1);
    const bool of_parts = !scales.ends_with(kBlockScales) && is_float(found.dtype);
    if (of_parts && shape == std::vector<int64_t>{1, 1}) return {scales, {rows, columns}, 1};
    if (of_parts && shape.size() == 2 && shape[0] == rows && shape[1] > 0 &&
        columns % shape[1] == 0) {
      const int64_t group = columns / shape[1];
      if (shape[1] == 1 || std::has_single_bit(static_cast<uint64_t>(group))) {
        return {scales, {1, group}, shape[1]};
      }
    }
    const std::vector of_blocks{blocks(rows, block_.rows), blocks(columns, block_.columns)};
    if (found.shape == of_blocks && is_float(found.dtype)) return {scales, block_, of_blocks[1]};
    user_error("{}: '{}': expected floats [{}], a scale for each block of {} x {}{}, got {} [{}]",
               path_.string(), scales, fmt::join(of_blocks, ", "), block_.rows, block_.columns,
               scales.ends_with(kBlockScales) ? "" : fmt::format(", or [{}, 1] or [1]", rows),
               dtype_name(found.dtype), fmt::join(found.shape, ", "));
  }

  void check_matrix(const std::string& scales, const TensorInfo& weight) const {
    if (weight.shape.size() == 2 && weight.num_elements() > 0) return;
    user_error("{}: '{}': expected scales of a matrix, got those of a shape [{}]", path_.string(),
               scales, fmt::join(weight.shape, ", "));
  }

  /// The scales of rows of blocks [begin, end).
  std::vector<float> read_scales(const Scales& scales, int64_t begin, int64_t end) const {
    const auto dtype = stored_->info(scales.name).dtype;
    const auto count = static_cast<size_t>((end - begin) * scales.across);
    std::vector<std::byte> bytes(count * static_cast<size_t>(dtype_bytes(dtype)));
    stored_->read(scales.name, begin * scales.across, bytes);
    std::vector<float> values(count);
    convert_values(bytes, dtype, std::as_writable_bytes(std::span(values)), DType::f32);
    return values;
  }

  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override {
    const auto found = scales_.find(name);
    if (found == scales_.end()) return stored_->read(name, begin, destination);
    const auto count = static_cast<int64_t>(destination.size() / sizeof(float));
    if (count == 0) return;
    std::vector<uint8_t> codes(static_cast<size_t>(count));
    stored_->read(name, begin, std::as_writable_bytes(std::span(codes)));
    const auto values = values_of(stored_->info(name).dtype);
    const auto& [_, block, across] = found->second;
    const int64_t width = info.shape[1];
    const int64_t first = begin / width / block.rows;
    const int64_t last = (begin + count - 1) / width / block.rows;
    const auto scales = read_scales(found->second, first, last + 1);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (begin + i) / width, column = (begin + i) % width;
      const auto at = (row / block.rows - first) * across + column / block.columns;
      const float value = values[codes[static_cast<size_t>(i)]] * scales[static_cast<size_t>(at)];
      std::memcpy(destination.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
    }
  }

  std::unique_ptr<Safetensors> stored_;
  Block block_;
  std::map<std::string, Scales> scales_;  ///< by what they scale
};

}  // namespace

bool has_scaled_weights(const TensorSource& stored) {
  return std::ranges::any_of(stored.tensors(), [&](const auto& item) {
    return !scales_of(stored, item.first, item.second.dtype).empty();
  });
}

std::unique_ptr<TensorSource> unscaled(std::unique_ptr<Safetensors> stored) {
  return std::make_unique<ScaledSource>(std::move(stored));
}

}  // namespace tessera::checkpoint
