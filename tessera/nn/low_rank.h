// Adapters of linear layers: what is trained beside a weight that is not.
#pragma once

#include <string>

#include "tessera/nn/layers.h"

namespace tessera::nn {

struct LowRankOptions {
  int64_t rank = 8;
  double scale = 1;          ///< of B A: alpha / rank, or alpha / sqrt(rank)
  double dropout = 0;        ///< of what A reads
  bool magnitude = false;    ///< DoRA
  std::string dropout_name;  ///< of the layer in its model: layers of one name drop the same
};

/// Puts an adapter beside `layer`'s weight, however that is kept: y = x W^T + scale drop(x) A^T B^T
/// + b (Hu et al., LoRA, ICLR 2022), with parameters lora_A [R, in] and lora_B [out, R], float32,
/// uninitialised. What keeps the weight is frozen. With `magnitude` also
/// lora_magnitude_vector m [out]: y = m / |W + scale B A| (x W^T + ..) + b, the norm of each row
/// taken as a constant (Liu et al., DoRA, ICML 2024, section 4.3). ValueError: a layer that has one.
void add_low_rank(LinearImpl& layer, const LowRankOptions& options);

/// The same beside a table: rows of weight + scale A^T B^T with lora_embedding_A [R, V] and
/// lora_embedding_B [D, R]. `dropout` has no effect, as in PEFT. ValueError: with `magnitude`.
void add_low_rank(EmbeddingImpl& layer, const LowRankOptions& options);

}  // namespace tessera::nn
