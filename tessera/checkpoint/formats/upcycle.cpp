#include "tessera/checkpoint/formats/upcycle.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/portable_numbers.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/spec.h"

namespace tessera::checkpoint {
namespace {

using models::ModelShape;

constexpr double kRouterStd = 0.02;

/// The weights of all routers, float32.
class RouterWeights : public TensorSource {
 public:
  RouterWeights(std::filesystem::path path, int64_t seed)
      : TensorSource(std::move(path)), seed_(seed) {}

  void add(const std::string& name, const std::vector<int64_t>& shape) {
    tensors_[name] = {DType::f32, shape};
  }

 private:
  void read_part(const std::string& name, const TensorInfo& /*info*/, int64_t begin,
                 std::span<std::byte> destination) const override {
    const PortableNumbers numbers(name, seed_);
    for (size_t at = 0; at < destination.size(); at += sizeof(float)) {
      const auto element = begin + static_cast<int64_t>(at / sizeof(float));
      const float value = numbers.uniform(element, kRouterStd);
      std::memcpy(destination.data() + at, &value, sizeof value);
    }
  }

  int64_t seed_;
};

/// The mixture that some family makes of the dense shape.
ModelShape mixture_of(const ModelShape& dense, const UpcycleOptions& options,
                      const std::string& where) {
  constexpr int64_t kMost = 1 << 12;
  if (options.num_experts < 2 || options.num_experts > kMost) {
    user_error("--upcycle: expected 2 to {} experts, got {}", kMost, options.num_experts);
  }
  if (options.top_k < 1 || options.top_k > options.num_experts) {
    user_error("--experts-per-token: expected 1 to {}, the number of experts, got {}",
               options.num_experts, options.top_k);
  }
  for (const auto& type : models::model_types()) {
    const auto* family = models::find_spec(type);
    if (family->upcycled == nullptr) continue;
    if (auto shape = family->upcycled(dense, options.num_experts, options.top_k)) return *shape;
  }
  user_error(
      "{}: --upcycle: expected a llama or mistral without biases, or a qwen3, with the same window "
      "in every layer, got a {}",
      where, models::hf_model_type(dense));
}

/// What a file says beside the shape: the mixture's is the dense model's.
nlohmann::json config_of(const ModelShape& shape, const nlohmann::json& dense) {
  nlohmann::json config = models::to_hf_config(shape);
  for (const auto* key : {"bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype",
                          "initializer_range"}) {
    if (dense.contains(key)) config[key] = dense[key];
  }
  return config;
}

/// The dense feed-forward's parameter whose copy an expert's is.
std::string dense_name(const models::MixtureNames& names, const std::string& parameter) {
  const std::pair<std::string, std::string> matrices[] = {
      {names.gate, "gate_proj"}, {names.up, "up_proj"}, {names.down, "down_proj"}};
  for (const auto& [own, dense] : matrices) {
    if (parameter.ends_with("." + own + ".weight")) return "mlp." + dense + ".weight";
  }
  throw std::logic_error("an expert has another matrix");
}

}  // namespace

TrainingSource upcycled(TrainingSource dense, const UpcycleOptions& options) {
  const auto where = dense.tensors.path().string();
  if (!dense.about.model.is_object()) {
    user_error("{}: its model is unknown, as no config.json is with it; give one with --config",
               where);
  }
  const auto shape = mixture_of(models::model_shape_of(dense.about.model, where), options, where);
  const auto& family = models::spec_of(shape.family);
  const auto& names = family.mixture(shape);
  const auto parameters = family.parameters(shape);

  auto held = std::make_unique<SourceView>(std::move(dense.tensors));
  auto made = std::make_unique<RouterWeights>(where, options.seed);
  const auto& stored = *held;
  auto& routers = *made;
  SourceView tensors(where);
  for (const auto* part : {&parameters.embedding, &parameters.head}) {
    for (const auto& parameter : *part) tensors.add(parameter.name, stored, parameter.name);
  }
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const auto prefix = fmt::format("{}{}.", parameters.block_prefix, layer);
    for (const auto& parameter : parameters.block) {
      const auto name = prefix + parameter.name;
      if (parameter.of_router) {
        routers.add(name, parameter.shape);
        tensors.add(name, routers, name, stored.info(prefix + "mlp.gate_proj.weight").dtype);
      } else {
        tensors.add(name, stored,
                    parameter.of_expert ? prefix + dense_name(names, parameter.name) : name);
      }
    }
  }
  const auto format = dense.stored.front().format;
  dense.stored.push_back({format, std::move(held)});
  dense.stored.push_back({format, std::move(made)});
  dense.tensors = std::move(tensors);
  dense.about.layout = {{"converted_from", format_name(format)}};
  dense.about.model = config_of(shape, dense.about.model);
  dense.about.config.clear();
  dense.about.step = 0;
  dense.about.state = {{"step", 0}};
  dense.validation_loss.reset();
  return dense;
}

}  // namespace tessera::checkpoint
