#include "tessera/checkpoint/formats/mxfp4.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/strict_json.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMxfp4Codes = "_blocks", kMxfp4Scales = "_scales";
constexpr int64_t kMxfp4Block = 32;  // numbers that have the same scale
constexpr int64_t kMxfp4Bytes = 16;  // of their codes

/// What each code of E2M1 stands for.
constexpr std::array<float, 16> kE2m1Values{0,    .5F,  1,  1.5F,  2,  3,  4,  6,
                                            -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};

/// What each byte of E8M0 stands for.
const std::array<float, 256>& e8m0_values() {
  static const auto values = [] {
    std::array<float, 256> table{};
    for (int byte = 0; byte < 255; ++byte) {
      table[static_cast<size_t>(byte)] = std::ldexp(1.F, byte - 127);
    }
    table[255] = std::numeric_limits<float>::quiet_NaN();
    return table;
  }();
  return values;
}

std::string plain_name(const std::string& codes) {
  return codes.substr(0, codes.size() - kMxfp4Codes.size());
}

std::string scales_name(const std::string& codes) {
  return plain_name(codes) + std::string(kMxfp4Scales);
}

/// Does the config.json that lies with the tensors say that they are in MXFP4?
bool is_said(const fs::path& path) {
  const auto config = (fs::is_directory(path) ? path : path.parent_path()) / "config.json";
  if (!fs::exists(config)) return false;
  const auto json = parse_strict_json(config, read_file(config));
  if (!json.is_object()) return false;
  const auto said = json.value("quantization_config", nlohmann::json());
  return said.is_object() && said.value("quant_method", nlohmann::json()) == "mxfp4";
}

std::vector<std::string> codes_in(const Safetensors& stored) {
  std::vector<std::string> named;
  for (const auto& [name, info] : stored.tensors()) {
    if (name.ends_with(kMxfp4Codes)) named.push_back(name);
  }
  if (named.empty() || is_said(stored.path())) return named;
  std::erase_if(named, [&](const std::string& name) {
    return stored.info(name).dtype != DType::u8 || !stored.contains(scales_name(name));
  });
  return named;
}

class Mxfp4Source : public TensorSource {
 public:
  explicit Mxfp4Source(std::unique_ptr<Safetensors> stored)
      : TensorSource(stored->path()), stored_(std::move(stored)) {
    tensors_ = stored_->tensors();
    for (const auto& name : codes_in(*stored_)) add(name);
  }

 private:
  void add(const std::string& name) {
    const auto& [dtype, blocks] = stored_->info(name);
    const bool fits = dtype == DType::u8 && blocks.size() >= 2 && blocks.back() == kMxfp4Bytes &&
                      std::ranges::find(blocks, 0) == blocks.end();
    if (!fits) {
      user_error("{}: '{}': expected U8 codes in blocks, [.., {}], got {} [{}]", path_.string(),
                 name, kMxfp4Bytes, dtype_name(dtype), fmt::join(blocks, ", "));
    }
    if (stored_->contains(plain_name(name))) {
      user_error("{}: holds '{}' and codes for it, '{}'; expected one of them", path_.string(),
                 plain_name(name), name);
    }
    const auto scales = scales_name(name);
    if (!stored_->contains(scales)) {
      user_error("{}: expected a tensor '{}' with a scale for each block of '{}', found none",
                 path_.string(), scales, name);
    }
    auto shape = blocks;
    shape.pop_back();
    const auto& found = stored_->info(scales);
    if (found.dtype != DType::u8 || found.shape != shape) {
      user_error("{}: '{}': expected U8 [{}], a scale for each block of codes, got {} [{}]",
                 path_.string(), scales, fmt::join(shape, ", "), dtype_name(found.dtype),
                 fmt::join(found.shape, ", "));
    }
    shape.back() *= kMxfp4Block;
    tensors_.erase(scales);
    tensors_[name] = {DType::f32, std::move(shape)};
  }

  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override {
    if (stored_->info(name).dtype == info.dtype) return stored_->read(name, begin, destination);
    const int64_t end = begin + std::ssize(destination) / dtype_bytes(info.dtype);
    const int64_t first_byte = begin / 2, first_block = begin / kMxfp4Block;
    std::vector<uint8_t> codes(static_cast<size_t>((end + 1) / 2 - first_byte));
    stored_->read(name, first_byte, std::as_writable_bytes(std::span(codes)));
    std::vector<uint8_t> scales(
        static_cast<size_t>((end + kMxfp4Block - 1) / kMxfp4Block - first_block));
    stored_->read(scales_name(name), first_block, std::as_writable_bytes(std::span(scales)));
    auto* to = destination.data();
    for (int64_t at = begin; at < end;) {
      const int64_t block = at / kMxfp4Block, block_end = std::min(end, (block + 1) * kMxfp4Block);
      const float scale = e8m0_values()[scales[static_cast<size_t>(block - first_block)]];
      for (; at < block_end; ++at, to += sizeof(float)) {
        const uint8_t byte = codes[static_cast<size_t>(at / 2 - first_byte)];
        const float value = kE2m1Values[at % 2 == 0 ? byte & 15U : byte >> 4U] * scale;
        std::memcpy(to, &value, sizeof value);
      }
    }
  }

  std::unique_ptr<Safetensors> stored_;
};

}  // namespace

bool has_mxfp4(const Safetensors& stored) { return !codes_in(stored).empty(); }

std::unique_ptr<TensorSource> from_mxfp4(std::unique_ptr<Safetensors> stored) {
  return std::make_unique<Mxfp4Source>(std::move(stored));
}

bool was_mxfp4(const std::string& name, const TensorInfo& info) {
  return name.ends_with(kMxfp4Codes) && info.dtype == DType::f32;
}

}  // namespace tessera::checkpoint
