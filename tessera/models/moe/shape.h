// What only families with experts in every block say of their shape.
#pragma once

#include "tessera/models/spec.h"

namespace tessera::models::moe {

enum class Kind { mixtral, olmoe, qwen2, qwen3, residual };

struct Facts {
  Kind kind = Kind::mixtral;

  bool operator==(const Facts&) const = default;
};

const MixtureNames& names_of(const ModelShape& shape);

inline Kind kind_of(const ModelShape& shape) { return shape.own.as<Facts>().kind; }

}  // namespace tessera::models::moe
