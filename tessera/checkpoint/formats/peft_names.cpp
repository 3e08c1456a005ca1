#include "tessera/checkpoint/formats/peft_names.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tessera/models/hf_config.h"

namespace tessera::checkpoint {

FamilyNames family_names_of(const models::ModelShape& shape) {
  return {nlohmann::json(models::to_hf_config(shape)), "the model"};
}

PeftPlace peft_place(const FamilyNames& names, const std::string& module) {
  const auto weight = module + ".weight", stored = names.stored(weight);
  if (stored == weight) return {module};
  for (const auto& [name, part] : names.ours(stored)) {
    if (name != weight || !part || part->of.size() != 2) continue;
    return {stored.substr(0, stored.rfind('.')), part->offset / part->strides.front(),
            part->shape.front()};
  }
  return {module};
}

std::pair<std::string, std::string> split_parameter(const std::string& name) {
  const auto dot = name.rfind('.');
  return {name.substr(0, dot), name.substr(dot)};
}

std::string peft_key(const std::string& module, const std::string& rest) {
  const bool is_module = rest == ".lora_A" || rest == ".lora_B";
  return fmt::format("{}{}{}{}", kPeftPrefix, module, rest, is_module ? ".weight" : "");
}

}  // namespace tessera::checkpoint
