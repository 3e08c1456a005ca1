// What tests of translations have in common.
#pragma once

#include <utility>
#include <vector>

#include "tessera/config/run_config.h"

namespace tessera::config::accelerate {

/// A recipe with data and with `overrides`.
inline LoadedConfig recipe_with(std::vector<Override> overrides) {
  overrides.push_back({.key = "data.train", .value = "any"});
  return load_run_config("recipes/tiny_llama.yaml", overrides);
}

}  // namespace tessera::config::accelerate
