// Rotary positions in config.json, as transformers 4 (rope_theta, rope_scaling) and 5
// (rope_parameters) write them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tessera/models/json_keys.h"
#include "tessera/models/shape.h"

namespace tessera::models {

/// Reads theta and scaling into the shape, whose max_seq_len is known. What
/// both versions say counts as version 4 says it. `absent_theta`: without rope_theta.
void read_rotary(const JsonKeys& keys, ModelShape& shape, double absent_theta = 10000);

/// rope_scaling as version 4 has it; null without scaling.
nlohmann::ordered_json rope_scaling_json(const std::optional<RopeScaling>& scaling);

}  // namespace tessera::models
