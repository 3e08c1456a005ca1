// What only DeepSeek-V3 says of its shape.
#pragma once

#include <cstdint>

#include "tessera/models/spec.h"

namespace tessera::models::deepseek {

struct Facts {
  int64_t query_rank = 0;     ///< q_lora_rank; 0: queries of one matrix
  int64_t key_rank = 0;       ///< kv_lora_rank
  int64_t rotated_width = 0;  ///< of a head, behind the other columns
  int64_t value_width = 0;    ///< of a head, at most head_dim
  bool interleaved = true;    ///< rotated columns are pairs of neighbours
  double expert_scale = 1;    ///< routed_scaling_factor
  int64_t num_shared = 1;     ///< experts that are kept as one
  double score_mscale = 0;    ///< mscale_all_dim of stretched positions; 0: none

  bool operator==(const Facts&) const = default;
};

const MixtureNames& mixture_names(const ModelShape& shape);

/// What scores are multiplied by.
double score_scale(const ModelShape& shape);

}  // namespace tessera::models::deepseek
