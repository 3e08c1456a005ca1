#include "tessera/checkpoint/formats/scaled_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
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

bool is_code(DType dtype) { return dtype == DType::f8_e4m3 || dtype == DType::i8; }

/// The scales of a tensor that holds codes; "": it has none.
std::string scales_of(const TensorSource& stored, const std::string& name, DType dtype) {
  if (!is_code(dtype)) return "";
  for (const auto ending : {kBlockScales, kScales}) {
    auto scales = name + std::string(ending);
    if (stored.contains(scales)) return scales;
  }
  return "";
}

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
      scales_.emplace(name, scales.ends_with(kBlockScales) ? of_blocks(scales, info)
                                                           : of_even_parts(scales, info));
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

  /// DeepSeek-V3's: blocks of the size that config.json says, of which the last may be smaller.
  Scales of_blocks(const std::string& scales, const TensorInfo& weight) const {
    check_matrix(scales, weight);
    const std::vector expected{blocks(weight.shape[0], block_.rows),
                               blocks(weight.shape[1], block_.columns)};
    const auto& found = stored_->info(scales);
    if (found.shape == expected && is_float(found.dtype)) return {scales, block_, expected[1]};
    user_error("{}: '{}': expected floats [{}], a scale for each block of {} x {}, got {} [{}]",
               path_.string(), scales, fmt::join(expected, ", "), block_.rows, block_.columns,
               dtype_name(found.dtype), fmt::join(found.shape, ", "));
  }

  /// compressed-tensors', fbgemm's, AutoFP8's: one, one for each row, or one for each group of a row.
  Scales of_even_parts(const std::string& scales, const TensorInfo& weight) const {
    check_matrix(scales, weight);
    const auto& found = stored_->info(scales);
    auto shape = found.shape;
    if (shape.size() < 2) shape.resize(2, 1);
    const int64_t rows = weight.shape[0], columns = weight.shape[1];
    const bool fits = shape.size() == 2 && is_float(found.dtype) && shape[0] > 0 && shape[1] > 0 &&
                      rows % shape[0] == 0 && columns % shape[1] == 0;
    if (fits) return {scales, {rows / shape[0], columns / shape[1]}, shape[1]};
    user_error("{}: '{}': expected floats that divide [{}] evenly, as [{}, 1], got {} [{}]",
               path_.string(), scales, fmt::join(weight.shape, ", "), rows, dtype_name(found.dtype),
               fmt::join(found.shape, ", "));
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
    const bool whole_numbers = stored_->info(name).dtype == DType::i8;
    const auto& [_, block, across] = found->second;
    const int64_t width = info.shape[1];
    const int64_t first = begin / width / block.rows;
    const int64_t last = (begin + count - 1) / width / block.rows;
    const auto scales = read_scales(found->second, first, last + 1);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (begin + i) / width, column = (begin + i) % width;
      const auto at = (row / block.rows - first) * across + column / block.columns;
      const auto code = codes[static_cast<size_t>(i)];
      const float number =
          whole_numbers ? static_cast<float>(static_cast<int8_t>(code)) : e4m3_values()[code];
      const float value = number * scales[static_cast<size_t>(at)];
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
