#include "tessera/checkpoint/formats/family_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "tessera/models/hf_config.h"

namespace tessera::checkpoint {

FamilyNames::FamilyNames(const nlohmann::json& config, const std::string& where) {
  if (!config.is_object()) return;
  const auto type = config.find("model_type");
  if (type != config.end() && type->is_string()) {
    family_ = models::find_spec(type->get<std::string>());
  }
  const auto tied = config.find("tie_word_embeddings");
  tied_ = tied != config.end() ? *tied == true : family_ != nullptr && family_->tied_unless_said;
  if (family_ == nullptr) return;
  if (!any_together() && !family_->predicts_further && family_->mixture == nullptr) return;
  shape_ = models::model_shape_of(config, where);
  auto parameters = family_->parameters(*shape_);
  block_ = std::move(parameters.block);
  block_prefix_ = std::move(parameters.block_prefix);
  if (family_->mixture != nullptr) mixture_ = &family_->mixture(*shape_);
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
  if (is_buffer || is_behind_last(stored) || (tied_ && stored == "lm_head.weight")) return "";
  if (family_ == nullptr || stored == "lm_head.weight" ||
      stored.starts_with(family_->optional_prefix)) {
    return stored;
  }
  return family_->optional_prefix + stored;
}

/// Of a tensor within a mixture.
std::vector<FamilyNames::Ours> FamilyNames::of_experts(const std::string& name) const {
  // In memory transformers calls every family's mixture `mlp`.
  constexpr std::string_view kInMemory = ".mlp.";
  auto own = name;
  if (const auto at = name.find(kInMemory); at != std::string::npos) {
    own.replace(at, kInMemory.size(), fmt::format(".{}.", mixture_->mixture));
  }
  const auto& shape = *shape_;
  const int64_t inside = shape.ffn_dim;
  struct Part {
    std::string name;
    int64_t rows;
  };
  const std::pair<std::string_view, std::vector<Part>> all_of_one[] = {
      {".experts.gate_up_proj", {{mixture_->gate, inside}, {mixture_->up, inside}}},
      {".experts.down_proj", {{mixture_->down, shape.dim}}}};
  for (const auto& [ending, parts] : all_of_one) {
    if (!own.ends_with(ending)) continue;
    const auto experts = own.substr(0, own.rfind('.') + 1);
    std::vector<Ours> result;
    int64_t row = 0;
    for (int64_t expert = 0; expert < shape.experts.num; ++expert) {
      for (const auto& part : parts) {
        result.push_back({.name = fmt::format("{}{}.{}.weight", experts, expert, part.name),
                          .first_row = row,
                          .rows = part.rows});
        row += part.rows;
      }
    }
    for (auto& part : result) part.all_rows = row;
    return result;
  }
  return {{.name = own}};
}

std::vector<FamilyNames::Ours> FamilyNames::ours(const std::string& stored) const {
  const auto name = our_name(stored);
  if (name.empty()) return {};
  if (mixture_ != nullptr) return of_experts(name);
  if (!any_together()) return {{.name = name}};
  for (const auto& together : family_->fused) {
    if (!name.ends_with("." + together.stored)) continue;
    const auto prefix = name.substr(0, name.size() - together.stored.size());
    std::vector<Ours> result;
    int64_t row = 0;
    for (const auto& part : together.parts) {
      const auto spec = std::ranges::find(block_, part, &models::ParameterSpec::name);
      result.push_back({.name = prefix + part, .first_row = row, .rows = spec->shape.front()});
      row += spec->shape.front();
    }
    for (auto& part : result) part.all_rows = row;
    return result;
  }
  return {{.name = name}};
}

FamilyNames::Stored FamilyNames::stored(const std::string& parameter) const {
  if (!any_together()) return {parameter, {parameter}};
  for (const auto& together : family_->fused) {
    for (const auto& part : together.parts) {
      if (!parameter.ends_with("." + part)) continue;
      const auto prefix = parameter.substr(0, parameter.size() - part.size());
      Stored result{.name = prefix + together.stored};
      for (const auto& other : together.parts) result.parts.push_back(prefix + other);
      return result;
    }
  }
  return {parameter, {parameter}};
}

}  // namespace tessera::checkpoint
