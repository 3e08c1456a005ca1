// How PEFT names what stands beside a model's modules, and where files have these modules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/checkpoint/formats/family_names.h"
#include "tessera/models/shape.h"

namespace tessera::checkpoint {

inline constexpr std::string_view kPeftPrefix = "base_model.model.";

FamilyNames family_names_of(const models::ModelShape& shape);

/// Where files have a module: by itself, or some rows of another.
struct PeftPlace {
  std::string module;
  int64_t first_row = 0, rows = 0;  ///< rows 0: by itself

  bool is_part() const { return rows > 0; }
};

/// An expert's matrix stands by itself, whatever files have.
PeftPlace peft_place(const FamilyNames& names, const std::string& module);

/// A parameter's module, and what follows: ".lora_A".
std::pair<std::string, std::string> split_parameter(const std::string& name);

/// PEFT's key of what follows a module's path.
std::string peft_key(const std::string& module, const std::string& rest);

}  // namespace tessera::checkpoint
