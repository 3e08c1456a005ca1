// The layers that models are made of. Each takes torch::TensorOptions (the meta device included)
// and leaves its parameters uninitialised: fill them with `initialise` (nn/initialise.h) or from a
// checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>

#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/nn/hooked.h"
#include "tessera/nn/linear.h"

namespace tessera::nn {

/// Rows of weight [V, D] by index. The gradient is added to the rows used only, never as a dense
/// [V, D] temporary, when the weight's gradient exists already (flat buffers), in that one's dtype.
class EmbeddingImpl : public Hookable {
 public:
  EmbeddingImpl(int64_t num_embeddings, int64_t dim, const torch::TensorOptions& options = {});
  torch::Tensor forward(const torch::Tensor& ids);  ///< int64 [..] -> [.., D]

  torch::Tensor weight;
  /// Where weight is a part of the rows: the first one. Indices of other rows give zeros.
  std::optional<int64_t> first_row;
  /// An adapter's [.., D] for ids [..], which is added (nn/low_rank.h).
  std::function<torch::Tensor(const EmbeddingImpl& module, const torch::Tensor& ids)> beside;
};
using Embedding = Hooked<EmbeddingImpl>;

/// Root mean square norm (Zhang and Sennrich, NeurIPS 2019), computed in fp32, times weight +
/// `offset` (1 in Gemma, whose weights begin at 0).
class RMSNormImpl : public Hookable {
 public:
  RMSNormImpl(int64_t dim, double eps, const torch::TensorOptions& options = {}, double offset = 0);
  torch::Tensor forward(const torch::Tensor& x);  ///< [.., D] -> [.., D]
  /// {x + residual, the norm of that}, where the sum goes on beside its norm: one pass over both, and over their
  /// gradients. An undefined residual adds nothing.
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x,
                                                   const torch::Tensor& residual);

  torch::Tensor weight;
  double eps, offset;
  /// Where the features are divided over ranks: how many there are, and what makes a sum over them
  /// of each rank's [.., 1] float32.
  struct Divided {
    int64_t features = 0;
    std::function<torch::Tensor(const torch::Tensor&)> sum;
  };
  std::optional<Divided> divided;
};
using RMSNorm = Hooked<RMSNormImpl>;

class LayerNormImpl : public Hookable {
 public:
  LayerNormImpl(int64_t dim, double eps, const torch::TensorOptions& options = {});
  torch::Tensor forward(const torch::Tensor& x);  ///< [.., D] -> [.., D]

  torch::Tensor weight, bias;
  double eps;
};
using LayerNorm = Hooked<LayerNormImpl>;

/// The last layer of a language model: logits, or the summed cross-entropy without ever holding all
/// logits. The weight [V, D] is its own, or an embedding's (tied).
class LanguageModelHeadImpl : public Hookable {
 public:
  LanguageModelHeadImpl(int64_t dim, int64_t vocab_size, const torch::TensorOptions& options = {});
  explicit LanguageModelHeadImpl(torch::Tensor tied_weight);

  double softcap = 0;  ///< logits l are softcap * tanh(l / softcap); 0: as they are
  /// May the loss's forward add the weight's gradient to a .grad() that is there, without a tensor [V, D] of its own? Only for
  /// a backward that begins with 1: another one is a ValueError, on a GPU an assertion of the device.
  bool adds_in_forward = true;

  /// hidden [.., D]. Without targets: logits [.., V]. With targets int64 [..] (-100: ignored): what
  /// `loss` makes of the token losses, fp32 and 0-d.
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& targets = {},
                        const kernels::TokenLoss& loss = {});
  bool forward_computes_gradients() const override { return true; }
  std::vector<torch::Tensor> borrowed_parameters() const override;

  torch::Tensor weight;
  kernels::VocabularyPart vocabulary;  ///< where it is divided: logits are of this part
};
using LanguageModelHead = Hooked<LanguageModelHeadImpl>;

}  // namespace tessera::nn
