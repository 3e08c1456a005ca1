#include "tessera/checkpoint/formats/peft_experts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/floats_of.h"
#include "tessera/checkpoint/formats/peft_joined.h"
#include "tessera/checkpoint/formats/peft_names.h"
#include "tessera/models/adapter_match.h"

namespace tessera::checkpoint {
namespace {

ExpertPlace place_in(const std::string& tensor, const Strided& part) {
  // [E, outputs, inputs], or turned: then a row's numbers lie apart.
  const bool turned = part.strides[1] != 1;
  ExpertPlace place{.tensor = tensor, .num_experts = part.of[0], .part = ""};
  place.outputs = part.of[turned ? 2 : 1];
  place.inputs = part.of[turned ? 1 : 2];
  const int64_t matrix = place.outputs * place.inputs, output = turned ? 1 : place.inputs;
  place.expert = part.offset / matrix;
  place.first = part.offset % matrix / output;
  place.step = part.strides[0] / output;
  return place;
}

/// An output of the tensor and a column of its B.
size_t index_in_b(const ExpertPlace& place, int64_t row, int64_t k, int64_t rank) {
  const int64_t width = rank * place.num_experts;
  return static_cast<size_t>((place.first + row * place.step) * width + k * place.num_experts +
                             place.expert);
}

}  // namespace

std::map<std::string, ExpertPlace> expert_places(const FamilyNames& names,
                                                 const models::ModelShape& shape) {
  std::map<std::string, ExpertPlace> places;
  std::set<std::string> seen;
  for (const auto& p : models::parameters_by_path(shape)) {
    if (p.in_tensor.empty() || !seen.insert(p.in_tensor).second) continue;
    for (const auto& [name, part] : names.ours(p.in_tensor)) {
      const auto module = split_parameter(name).first;
      places[module] = place_in(p.in_tensor, part.value());
      places[module].part = module.substr(module.rfind('.') + 1);
    }
  }
  return places;
}

std::string expert_key(const std::string& tensor, const std::string& rest,
                       const std::set<std::string>& tensors) {
  const auto [experts, name] = split_parameter(tensor);
  const bool is_inner = name == ".gate_up_proj" && tensors.contains(experts + ".down_proj");
  return peft_key(experts + (is_inner ? ".base_layer" : ""), rest);
}

void add_of_expert(SourceView& view, const models::TrainedParameter& parameter,
                   const ExpertPlace& place, const TensorSource& stored, const std::string& key) {
  const bool is_a = parameter.name.ends_with(".lora_A");
  const int64_t experts = place.num_experts, rank = parameter.shape[is_a ? 0 : 1];
  const int64_t all = rank * experts;
  const std::vector<int64_t> expected =
      is_a ? std::vector{all, place.inputs} : std::vector{place.outputs, all};
  const auto& info = stored.info(key);
  if (info.shape != expected || !is_float(info.dtype)) {
    user_error(
        "{}: '{}': expected shape [{}] and floats, of {} experts and rank {}, got [{}] of {}: "
        "an adapter of another model, or r and rank_pattern say another rank",
        stored.path().string(), key, fmt::join(expected, ", "), experts, rank,
        fmt::join(info.shape, ", "), dtype_name(info.dtype));
  }
  if (is_a) return view.add_rows(parameter.name, stored, key, {place.expert * rank, rank});
  view.add_part(parameter.name, stored, key,
                Strided{expected,
                        place.first * all + place.expert,
                        parameter.shape,
                        {place.step * all, experts}});
}

ExpertAdapter expert_adapter(std::vector<models::AdaptedModule> modules,
                             const std::map<std::string, ExpertPlace>& places, bool rslora,
                             const std::string& otherwise) {
  ExpertAdapter joined{.modules = std::move(modules), .places = {}};
  std::map<int64_t, int64_t> ranks;
  std::map<std::string, int64_t> counts;
  for (const auto& module : joined.modules) {
    const auto& place = joined.places.emplace_back(places.at(module.path));
    ranks[place.expert] += module.rank;
    ++counts[place.part];
  }
  const auto& first = joined.places.front();
  for (const auto& [part, count] : counts) {
    if (count == first.num_experts) continue;
    user_error(
        "targets: {} has an adapter in {} of {} experts of {}, where PEFT has one of all together; "
        "take all experts, or {}",
        part, count, first.num_experts, first.tensor, otherwise);
  }
  for (const auto& [expert, rank] : ranks) joined.rank = std::max(joined.rank, rank);
  joined.alpha = joined_alpha(joined.modules.front(), joined.rank, rslora);
  return joined;
}

std::vector<float> ExpertAdapter::a(const TensorSource& trained) const {
  const auto& all = places.front();
  std::vector<float> values(static_cast<size_t>(all.num_experts * rank * all.inputs));
  std::map<int64_t, int64_t> used;  // rows of an expert's A
  for (size_t i = 0; i < modules.size(); ++i) {
    auto& row = used[places[i].expert];
    const auto part = floats_of(trained, modules[i].path + ".lora_A");
    std::ranges::copy(part, values.begin() + (places[i].expert * rank + row) * all.inputs);
    row += modules[i].rank;
  }
  return values;
}

std::vector<float> ExpertAdapter::b(const TensorSource& trained) const {
  const auto& all = places.front();
  std::vector<float> values(static_cast<size_t>(all.outputs * rank * all.num_experts));
  std::map<int64_t, int64_t> used;  // columns of an expert's B
  const double scale = modules.front().scale;
  for (size_t i = 0; i < modules.size(); ++i) {
    auto& column = used[places[i].expert];
    const auto index = [&](int64_t row, int64_t k) {
      return index_in_b(places[i], row, column + k, rank);
    };
    put_b(trained, modules[i], scale, index, values);
    column += modules[i].rank;
  }
  return values;
}

void ComputedMatrices::add(const std::string& name, std::vector<int64_t> shape, Compute compute) {
  tensors_[name] = {DType::f32, std::move(shape)};
  computes_[name] = std::move(compute);
}

void ComputedMatrices::read_part(const std::string& name, const TensorInfo& /*info*/, int64_t begin,
                                 std::span<std::byte> destination) const {
  const std::lock_guard lock(mutex_);
  if (name != last_name_) {
    last_ = computes_.at(name)();
    last_name_ = name;
  }
  std::memcpy(destination.data(), last_.data() + begin, destination.size());
}

}  // namespace tessera::checkpoint
