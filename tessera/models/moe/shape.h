// What only families with experts in every block say of their shape.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/models/shape.h"

namespace tessera::models::moe {

enum class Kind { mixtral, olmoe, qwen2, qwen3 };

struct Facts {
  Kind kind = Kind::mixtral;
  int64_t dense_ffn_dim = 0;  ///< Qwen's intermediate_size, which no block uses

  bool operator==(const Facts&) const = default;
};

/// What a kind calls its parts: the mixture within a block, an expert's three matrices.
struct Names {
  std::string mixture, gate, up, down;
};
const Names& names_of(const ModelShape& shape);

inline Kind kind_of(const ModelShape& shape) { return shape.own.as<Facts>().kind; }

}  // namespace tessera::models::moe
