// A linear layer whose weight is kept in 4 or 8 bits (QLoRA's base).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/weight_format.h"
#include "tessera/nn/linear.h"

namespace tessera::nn {

struct QuantiseOptions {
  WeightFormat format = WeightFormat::nf4;
  int64_t block = 64;  ///< of 4-bit formats
};

/// A layer that was quantised, by its path, and which weight it had.
struct QuantisedLayer {
  std::string path;  ///< "model.layers.0.mlp.up_proj"
  QuantisedShape shape;
  WeightLayout layout = WeightLayout::out_in;  ///< of the weight that it had
};

/// The weight of `layer` becomes the parts of `quantised_parts` (base/weight_format.h), tensors of
/// bytes on its device which are not trained: of meta tensors, that somebody has to fill; of others,
/// its values quantised. Products are those of kernels::quantised_linear. Bias and hooks stay.
void quantise_weight(LinearImpl& layer, const QuantiseOptions& options);

/// Does so with every linear layer in the modules `blocks`, whose paths in `model` are given; what
/// is no linear layer (norms, embeddings, heads) stays as it is. To be called before an adapter is
/// put on, the model is divided or units are made.
std::vector<QuantisedLayer> quantise_linear_layers(torch::nn::Module& model,
                                                   const std::vector<std::string>& blocks,
                                                   const QuantiseOptions& options);

}  // namespace tessera::nn
