#include "tessera/nn/linears.h"

#include <algorithm>

#include "tessera/kernels/autocast.h"

namespace tessera::nn {
namespace {

/// Is it x W^T + b and no more? What else a call of it does, or refuses, is its own.
bool is_plain(const Linear& layer, const torch::Tensor& x) {
  return layer->hooks().empty() && layer->kept()->is_dense() && !layer->products &&
         !layer->over_ranks &&
         (x.scalar_type() == layer->weight.scalar_type() || kernels::is_autocast(layer->weight));
}

}  // namespace

std::vector<torch::Tensor> linears(const torch::Tensor& x, std::initializer_list<Linear> layers,
                                   kernels::ResultLayout layout) {
  std::vector<torch::Tensor> weights, biases, results;
  for (const auto& layer : layers) {
    weights.push_back(layer->weight);
    if (layer->bias.defined()) biases.push_back(layer->bias);
  }
  const bool alike = biases.empty() || biases.size() == weights.size();
  if (alike && std::ranges::all_of(layers, [&](const auto& layer) { return is_plain(layer, x); })) {
    return kernels::linears(x, weights, biases, {.layout = layout});
  }
  for (auto layer : layers) results.push_back(layer(x));
  return results;
}

}  // namespace tessera::nn
