#include "tessera/checkpoint/formats/bitsandbytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/mxfp4.h"
#include "tessera/checkpoint/formats/scaled_weights.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kState = ".quant_state.bitsandbytes__", kScale = ".SCB";
constexpr float kReciprocal = 7.874015718698502e-3f;  // 1 / 127 as the peer writes it
constexpr int64_t kLargestBlock = 4096;

/// One quantised weight.
struct Stored {
  int64_t out = 0, in = 0;
  int64_t block = 0;          ///< 0: 8 bits
  std::vector<float> values;  ///< [16] what a code stands for
  std::vector<float> absmax;  ///< of each block, or each row
};

class BitsAndBytesSource : public TensorSource {
 public:
  explicit BitsAndBytesSource(std::unique_ptr<Safetensors> stored)
      : TensorSource(stored->path()), stored_(std::move(stored)) {
    tensors_ = stored_->tensors();
    for (const auto& [name, info] : stored_->tensors()) {
      if (const auto at = name.find(kState); at != std::string::npos) {
        take_four_bits(name.substr(0, at), name, name.substr(at + kState.size()));
      } else if (name.ends_with(kScale)) {
        take_eight_bits(name.substr(0, name.size() - kScale.size()));
      }
    }
  }

 private:
  template <typename T>
  std::vector<T> all(const std::string& name, DType dtype, int64_t count) {
    if (!stored_->contains(name)) {
      user_error("{}: expected a tensor '{}' of a quantised weight, found none", where(), name);
    }
    const auto& info = stored_->info(name);
    if (info.dtype != dtype || (count >= 0 && info.num_elements() != count)) {
      user_error("{}: '{}': expected {} numbers of {}, got {} of {}", where(), name,
                 count < 0 ? info.num_elements() : count, dtype_name(dtype), info.num_elements(),
                 dtype_name(info.dtype));
    }
    std::vector<T> values(static_cast<size_t>(info.num_elements()));
    stored_->read(name, 0, std::as_writable_bytes(std::span(values)));
    tensors_.erase(name);
    return values;
  }

  std::string where() const { return path_.string(); }

  struct State {
    int64_t block = 0, out = 0, in = 0, nested_block = 0;
    float offset = 0;
  };

  State read_state(const std::string& name, const std::string& type) {
    const auto text = all<char>(name, DType::u8, -1);
    const auto problem = [&](const std::string& what) {
      user_error("{}: '{}': expected the state of a weight in 4 bits, got {}", where(), name, what);
    };
    const auto state = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
    if (!state.is_object()) problem("no JSON object; the file is damaged");
    const auto number = [&](const char* key, int64_t low, int64_t high) {
      const auto found = state.find(key);
      if (found == state.end() || !found->is_number_integer() || *found < low || *found > high) {
        problem(fmt::format("no {} from {} to {}", key, low, high));
      }
      return found->get<int64_t>();
    };
    if (type != "nf4" && type != "fp4") problem("type '" + type + "', which is not nf4 or fp4");
    if (state.value("quant_type", json()) != type) problem("another quant_type inside");
    State result{.block = number("blocksize", 32, kLargestBlock)};
    const auto shape = state.value("shape", json());
    if (!shape.is_array() || shape.size() != 2 || !shape[0].is_number_unsigned() ||
        !shape[1].is_number_unsigned()) {
      problem("no shape of two sizes");
    }
    result.out = shape[0].get<int64_t>(), result.in = shape[1].get<int64_t>();
    if (result.out < 1 || result.in < 1 || result.out > (int64_t{1} << 40) / result.in) {
      problem("a shape that no weight has");
    }
    if (state.contains("nested_blocksize")) {
      result.nested_block = number("nested_blocksize", 1, int64_t{1} << 20);
      if (!state.value("nested_offset", json()).is_number()) problem("no nested_offset");
      result.offset = state["nested_offset"].get<float>();
    }
    return result;
  }

  void take_four_bits(const std::string& weight, const std::string& name, const std::string& type) {
    const auto state = read_state(name, type);
    const int64_t elements = state.out * state.in;
    const int64_t blocks = (elements + state.block - 1) / state.block;
    Stored kept{.out = state.out, .in = state.in, .block = state.block};
    kept.values = all<float>(weight + ".quant_map", DType::f32, 16);
    if (state.nested_block == 0) {
      kept.absmax = all<float>(weight + ".absmax", DType::f32, blocks);
    } else {
      const auto codes = all<uint8_t>(weight + ".absmax", DType::u8, blocks);
      const auto map = all<float>(weight + ".nested_quant_map", DType::f32, 256);
      const int64_t groups = (blocks + state.nested_block - 1) / state.nested_block;
      const auto nested = all<float>(weight + ".nested_absmax", DType::f32, groups);
      for (size_t i = 0; i < codes.size(); ++i) {
        const auto group = i / static_cast<size_t>(state.nested_block);
        kept.absmax.push_back(map[codes[i]] * nested[group]);
      }
      // Apart, so that no compiler makes one rounding of the two that the peer has.
      for (float& absmax : kept.absmax) absmax += state.offset;
    }
    add(weight, std::move(kept), DType::u8, (elements + 1) / 2);
  }

  void take_eight_bits(const std::string& layer) {
    const auto weight = layer + ".weight";
    if (!stored_->contains(weight)) return;
    const auto& shape = stored_->info(weight).shape;
    if (shape.size() != 2) user_error("{}: '{}': expected a matrix", where(), weight);
    Stored kept{.out = shape[0], .in = shape[1]};
    kept.absmax = all<float>(layer + std::string(kScale), DType::f32, kept.out);
    tensors_.erase(layer + ".weight_format");
    add(weight, std::move(kept), DType::i8, shape[0] * shape[1]);
  }

  void add(const std::string& weight, Stored kept, DType dtype, int64_t count) {
    if (!stored_->contains(weight) || stored_->info(weight).dtype != dtype ||
        stored_->info(weight).num_elements() != count) {
      user_error("{}: '{}': expected {} bytes of codes for a weight [{}, {}]", where(), weight,
                 count, kept.out, kept.in);
    }
    tensors_[weight] = {.dtype = DType::f32, .shape = {kept.out, kept.in}};
    weights_.emplace(weight, std::move(kept));
  }

  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override {
    const auto found = weights_.find(name);
    if (found == weights_.end()) return stored_->read(name, begin, destination);
    const auto& weight = found->second;
    const auto count = static_cast<int64_t>(destination.size()) / dtype_bytes(info.dtype);
    const bool four = weight.block > 0;
    const int64_t first = four ? begin / 2 : begin;
    const int64_t last = four ? (begin + count + 1) / 2 : begin + count;
    std::vector<uint8_t> codes(static_cast<size_t>(last - first));
    stored_->read(name, first, std::as_writable_bytes(std::span(codes)));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = begin + i;
      const uint8_t byte = codes[static_cast<size_t>((four ? at / 2 : at) - first)];
      const float absmax =
          weight.absmax[static_cast<size_t>(at / (four ? weight.block : weight.in))];
      const float value =
          four ? weight.values[at % 2 == 0 ? byte >> 4 : byte & 15] * absmax
               : static_cast<float>(static_cast<int8_t>(byte)) * absmax * kReciprocal;
      std::memcpy(destination.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
    }
  }

  std::unique_ptr<Safetensors> stored_;
  std::map<std::string, Stored, std::less<>> weights_;
};

bool is_quantised(const TensorSource& stored) {
  return std::ranges::any_of(stored.tensors(), [](const auto& item) {
    return item.first.find(kState) != std::string::npos || item.first.ends_with(kScale);
  });
}

}  // namespace

std::unique_ptr<TensorSource> open_safetensors(const std::filesystem::path& path) {
  auto stored = std::make_unique<Safetensors>(path);
  if (has_scaled_weights(*stored)) return unscaled(std::move(stored));
  if (has_mxfp4(*stored)) return from_mxfp4(std::move(stored));
  if (!is_quantised(*stored)) return stored;
  return std::make_unique<BitsAndBytesSource>(std::move(stored));
}

/// quant_method of what is read as floats here.
constexpr const char* kReadAsFloats[] = {"bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8",
                                         "mxfp4"};

json dequantised_config(json config) {
  const auto* const kKey = "quantization_config";
  if (!config.is_object() || !config.contains(kKey)) return config;
  const auto& said = config[kKey];
  const auto method = said.is_object() ? said.value("quant_method", json()) : json();
  const auto is = [&](const char* name) { return method == name; };
  if (std::ranges::any_of(kReadAsFloats, is)) config.erase(kKey);
  return config;
}

}  // namespace tessera::checkpoint
