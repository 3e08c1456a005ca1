#include "tessera/checkpoint/formats/base_weights.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tessera/base/digest.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

std::string sample_of_weights(const std::filesystem::path& path) {
  const Safetensors stored(path);
  constexpr int64_t kStretch = 1024;  // elements
  std::string sampled;
  for (const auto& [name, info] : stored.tensors()) {
    sampled += fmt::format("{} {} {};", name, static_cast<int>(info.dtype), info.num_elements());
    const auto count = std::min(kStretch, info.num_elements());
    for (const int64_t half : {0, 1, 2}) {
      std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_bytes(info.dtype)));
      stored.read(name, (info.num_elements() - count) * half / 2, bytes);
      sampled += sha256(bytes);
    }
  }
  return sha256(sampled);
}

std::optional<BaseWeights> base_weights_of(const nlohmann::json& state) {
  if (!state.is_object() || !state.contains("base") || !state.contains("adapter")) return {};
  const auto& base = state["base"];
  BaseWeights result{.path = base.value("path", ""),
                     .sample = base.value("sample", ""),
                     .adapters = {},
                     .adapter = state["adapter"]};
  for (const auto& below : base.value("adapters", nlohmann::json::array())) {
    result.adapters.push_back({below.value("path", ""), below.value("sample", "")});
  }
  return result;
}

void put_base_weights(const BaseWeights& base, nlohmann::json& state) {
  state["base"] = {{"path", base.path}, {"sample", base.sample}};
  for (const auto& below : base.adapters) {
    state["base"]["adapters"].push_back({{"path", below.path}, {"sample", below.sample}});
  }
  state["adapter"] = base.adapter;
}

BaseWeights::Adapter base_adapter(const std::filesystem::path& folder) {
  return {.path = std::filesystem::absolute(folder).lexically_normal().string(),
          .sample = sample_of_weights(folder / kPeftWeights)};
}

void check_base_weights(const BaseWeights& base, const std::string& where) {
  if (base.path.empty()) {
    user_error(
        "{}: an adapter beside weights that were drawn from a seed; expected one of a stored model",
        where);
  }
  if (!std::filesystem::exists(base.path)) {
    user_error(
        "{}: an adapter beside the weights in {}, which are not there any more; put them back",
        where, base.path);
  }
  if (sample_of_weights(base.path) != base.sample) {
    user_error("{}: an adapter beside other weights than those that are in {} now", where,
               base.path);
  }
  for (const auto& below : base.adapters) {
    if (!std::filesystem::exists(std::filesystem::path(below.path) / kPeftWeights)) {
      user_error("{}: an adapter upon the one in {}, which is not there any more; put it back",
                 where, below.path);
    }
    if (base_adapter(below.path) != below) {
      user_error("{}: an adapter upon another one than that which is in {} now", where, below.path);
    }
  }
}

}  // namespace tessera::checkpoint
