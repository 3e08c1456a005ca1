#include "tessera/checkpoint/formats/family_names.h"

#include <algorithm>
#include <charconv>

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
  if (any_together()) {
    const auto shape = models::model_shape_of(config, where);
    block_ = family_->parameters(shape).block;
  }
  if (family_ != nullptr && family_->predicts_further) {
    const auto shape = models::model_shape_of(config, where);
    block_prefix_ = family_->parameters(shape).block_prefix;
    num_layers_ = shape.num_layers;
  }
}

bool FamilyNames::is_behind_last(const std::string& stored) const {
  if (block_prefix_.empty() || !stored.starts_with(block_prefix_)) return false;
  int64_t layer = 0;
  const auto* end = stored.data() + stored.size();
  const auto read = std::from_chars(stored.data() + block_prefix_.size(), end, layer);
  return read.ec == std::errc() && read.ptr != end && *read.ptr == '.' && layer >= num_layers_;
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

std::vector<FamilyNames::Ours> FamilyNames::ours(const std::string& stored) const {
  const auto name = our_name(stored);
  if (name.empty()) return {};
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
