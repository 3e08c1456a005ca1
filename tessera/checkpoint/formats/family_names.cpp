#include "tessera/checkpoint/formats/family_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/models/hf_config.h"

namespace tessera::checkpoint {
namespace {

constexpr std::string_view kExperts = ".experts.";
constexpr std::string_view kHead = "lm_head.weight";

bool is_tied(const nlohmann::json& config, const models::FamilySpec* family) {
  const auto said = config.find("tie_word_embeddings");
  return said != config.end() ? *said == true : family != nullptr && family->tied_unless_said;
}

const models::FamilySpec* family_of(const nlohmann::json& config) {
  const auto type = config.find("model_type");
  const bool is_named = type != config.end() && type->is_string();
  return is_named ? models::find_spec(type->get<std::string>()) : nullptr;
}

/// Do two tensors hold the same numbers? In the narrower type, if theirs differ.
bool are_equal(const TensorSource& tensors, std::string_view one, std::string_view other) {
  constexpr int64_t kAtOnce = int64_t{1} << 20;
  const auto &first = tensors.info(one), &second = tensors.info(other);
  if (first.shape != second.shape) return false;
  const auto narrow =
      dtype_bytes(first.dtype) <= dtype_bytes(second.dtype) ? first.dtype : second.dtype;
  if (!is_convertible(first.dtype, narrow) || !is_convertible(second.dtype, narrow)) return true;
  std::vector<std::byte> stored;
  const auto read = [&](std::string_view name, DType dtype, int64_t begin, int64_t count,
                        std::vector<std::byte>& numbers) {
    numbers.resize(static_cast<size_t>(count * dtype_bytes(narrow)));
    if (dtype == narrow) return tensors.read(name, begin, numbers);
    stored.resize(static_cast<size_t>(count * dtype_bytes(dtype)));
    tensors.read(name, begin, stored);
    convert_values(stored, dtype, numbers, narrow);
  };
  std::vector<std::byte> ours, theirs;
  const int64_t all = first.num_elements();
  for (int64_t begin = 0; begin < all; begin += kAtOnce) {
    const int64_t count = std::min(kAtOnce, all - begin);
    read(one, first.dtype, begin, count, ours);
    read(other, second.dtype, begin, count, theirs);
    if (ours != theirs) return false;
  }
  return true;
}

}  // namespace

FamilyNames::FamilyNames(const nlohmann::json& config, const std::string& where) {
  if (!config.is_object()) return;
  family_ = family_of(config);
  tied_ = is_tied(config, family_);
  if (family_ == nullptr) return;
  if (!any_together() && !family_->predicts_further && family_->mixture == nullptr) return;
  shape_ = models::model_shape_of(config, where);
  auto parameters = family_->parameters(*shape_);
  block_ = std::move(parameters.block);
  block_prefix_ = std::move(parameters.block_prefix);
  if (family_->mixture == nullptr) return;
  mixture_ = &family_->mixture(*shape_);
  of_experts_ = tensors_of_experts(*mixture_, *shape_);
}

std::vector<FamilyNames::OfExperts> FamilyNames::tensors_of_experts(
    const models::MixtureNames& names, const models::ModelShape& shape) {
  const int64_t num = shape.experts.num, dim = shape.dim, inside = shape.ffn_dim;
  const auto gate = names.gate + ".weight", up = names.up + ".weight",
             down = names.down + ".weight";
  if (!names.alternating) {  // as transformers 5 has experts in memory
    const std::vector<int64_t> both{num, 2 * inside, dim}, one{num, dim, inside};
    return {{"gate_up_proj",
             {{gate, Strided{both, 0, {inside, dim}, {dim, 1}}},
              {up, Strided{both, inside * dim, {inside, dim}, {dim, 1}}}}},
            {"down_proj", {{down, Strided{one, 0, {dim, inside}, {inside, 1}}}}}};
  }
  const std::vector<int64_t> turned{num, dim, 2 * inside}, rows{num, 2 * inside, dim},
      biases{num, 2 * inside}, down_turned{num, inside, dim}, down_rows{num, dim, inside};
  return {{"gate_up_proj",
           {{gate, Strided{turned, 0, {inside, dim}, {2, 2 * inside}}},
            {up, Strided{turned, 1, {inside, dim}, {2, 2 * inside}}}}},
          {"gate_up_proj_bias",
           {{names.gate + ".bias", Strided{biases, 0, {inside}, {2}}},
            {names.up + ".bias", Strided{biases, 1, {inside}, {2}}}}},
          {"down_proj", {{down, Strided{down_turned, 0, {dim, inside}, {1, dim}}}}},
          {"down_proj_bias", {{names.down + ".bias", Strided{{num, dim}, 0, {dim}, {1}}}}},
          // Codes in blocks of inputs, which mxfp4.h has made numbers.
          {"gate_up_proj_blocks",
           {{gate, Strided{rows, 0, {inside, dim}, {2 * dim, 1}}},
            {up, Strided{rows, dim, {inside, dim}, {2 * dim, 1}}}}},
          {"down_proj_blocks", {{down, Strided{down_rows, 0, {dim, inside}, {inside, 1}}}}}};
}

bool FamilyNames::is_behind_last(const std::string& stored) const {
  const bool may_be = family_ != nullptr && family_->predicts_further;
  if (!may_be || !stored.starts_with(block_prefix_)) return false;
  int64_t layer = 0;
  const auto* end = stored.data() + stored.size();
  const auto read = std::from_chars(stored.data() + block_prefix_.size(), end, layer);
  return read.ec == std::errc() && read.ptr != end && *read.ptr == '.' &&
         layer >= shape_->num_layers;
}

std::string FamilyNames::our_name(const std::string& stored) const {
  const bool is_buffer = stored.ends_with(".attn.bias") || stored.ends_with(".attn.masked_bias") ||
                         stored.ends_with(".rotary_emb.inv_freq");
  if (is_buffer || is_behind_last(stored) || (tied_ && stored == kHead)) return "";
  if (family_ == nullptr || stored == kHead || stored.starts_with(family_->optional_prefix)) {
    return stored;
  }
  return family_->optional_prefix + stored;
}

/// The tensors of ours that a tensor of a model with mixtures becomes.
std::vector<FamilyNames::Ours> FamilyNames::of_mixture(const std::string& name) const {
  // In memory transformers calls every family's mixture `mlp`.
  constexpr std::string_view kInMemory = ".mlp.";
  auto own = name;
  if (const auto at = name.find(kInMemory); at != std::string::npos) {
    own.replace(at, kInMemory.size(), fmt::format(".{}.", mixture_->mixture));
  }
  for (const auto& [ending, parts] : of_experts_) {
    if (!own.ends_with(fmt::format("{}{}", kExperts, ending))) continue;
    const auto experts = own.substr(0, own.size() - ending.size());
    std::vector<Ours> result;
    for (int64_t expert = 0; expert < shape_->experts.num; ++expert) {
      for (auto [part, place] : parts) {
        place->offset += expert * TensorInfo{DType::f32, place->of}.num_elements() / place->of[0];
        result.push_back({fmt::format("{}{}.{}", experts, expert, part), std::move(place)});
      }
    }
    return result;
  }
  return {{.name = own, .part = {}}};
}

std::vector<FamilyNames::Ours> FamilyNames::ours(const std::string& stored) const {
  const auto name = our_name(stored);
  if (name.empty()) return {};
  if (mixture_ != nullptr) return of_mixture(name);
  if (!any_together()) return {{.name = name, .part = {}}};
  for (const auto& together : family_->fused) {
    if (!name.ends_with("." + together.stored)) continue;
    const auto prefix = name.substr(0, name.size() - together.stored.size());
    std::vector<Ours> result;
    int64_t rows = 0;
    for (const auto& part : together.parts) {
      const auto& shape = std::ranges::find(block_, part, &models::ParameterSpec::name)->shape;
      const bool is_matrix = shape.size() == 2;
      const int64_t width = is_matrix ? shape.back() : 1;
      const auto strides = is_matrix ? std::vector{width, int64_t{1}} : std::vector{width};
      result.push_back({prefix + part, Strided{shape, rows * width, shape, strides}});
      rows += shape.front();
    }
    for (auto& part : result) part.part->of.front() = rows;
    return result;
  }
  return {{.name = name, .part = {}}};
}

std::string FamilyNames::stored(const std::string& parameter) const {
  if (!any_together()) return parameter;
  for (const auto& together : family_->fused) {
    for (const auto& part : together.parts) {
      if (!parameter.ends_with("." + part)) continue;
      return parameter.substr(0, parameter.size() - part.size()) + together.stored;
    }
  }
  const auto experts = parameter.find(kExperts);
  if (mixture_ == nullptr || experts == std::string::npos) return parameter;
  const auto number = experts + kExperts.size(), end = parameter.find('.', number);
  if (end == std::string::npos) return parameter;
  const auto own = parameter.substr(end + 1);
  for (const auto& [ending, parts] : of_experts_) {
    if (std::ranges::find(parts, own, &Ours::name) == parts.end()) continue;
    return parameter.substr(0, number) + ending;
  }
  return parameter;
}

void add_stored(const FamilyNames& family, const TensorSource& ours, const std::string& parameter,
                SourceView& view, const AddStoredOptions& options) {
  const auto stored = family.stored(parameter);
  const auto& [prefix, dtype] = options;
  if (stored == parameter) return view.add(prefix + stored, ours, prefix + parameter, dtype);
  if (view.contains(prefix + stored)) return;
  for (const auto& [name, part] : family.ours(stored)) {
    view.put_part(prefix + stored, ours, prefix + name, part.value(), dtype);
  }
}

void check_tied_head(const nlohmann::json& config, const TensorSource& tensors) {
  if (!config.is_object() || !is_tied(config, family_of(config)) || !tensors.contains(kHead))
    return;
  const auto is_embedding = [](const auto& item) {
    return item.first.ends_with("embed_tokens.weight") || item.first.ends_with("wte.weight");
  };
  const auto embedding = std::ranges::find_if(tensors.tensors(), is_embedding);
  if (embedding == tensors.tensors().end() || are_equal(tensors, kHead, embedding->first)) return;
  user_error(
      "{}: '{}' differs from '{}', which config.json says is the head, too; set "
      "tie_word_embeddings to false there, or leave the tensor out",
      tensors.path().string(), kHead, embedding->first);
}

}  // namespace tessera::checkpoint
