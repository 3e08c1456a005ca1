// What only gpt-oss says of its shape.
#pragma once

#include "tessera/models/spec.h"

namespace tessera::models::gpt_oss {

struct Facts {
  /// Constants of an expert's activation (kernels/activation.h, ClampedGate).
  double gate_scale = 1.702, gate_limit = 7;

  bool operator==(const Facts&) const = default;
};

const MixtureNames& mixture_names(const ModelShape& shape);

}  // namespace tessera::models::gpt_oss
