// What only families with experts in every block say of their shape.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/models/shape.h"

namespace tessera::models::moe {

struct Facts {
  int64_t dense_ffn_dim = 0;  ///< Qwen3's intermediate_size, which no block uses

  bool operator==(const Facts&) const = default;
};

/// What a family calls its parts: the mixture within a block, an expert's three matrices.
struct Names {
  std::string mixture, gate, up, down;
};
const Names& names_of(const ModelShape& shape);

}  // namespace tessera::models::moe
