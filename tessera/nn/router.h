// Which experts a token goes to, and how much each of them counts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/base/expert_capacity.h"
#include "tessera/base/expert_sampling.h"
#include "tessera/kernels/router.h"
#include "tessera/nn/hooked.h"

namespace tessera::nn {

/// What makes a token's scores of its logits.
enum class RouterScores { softmax, sigmoid };

struct RouterOptions {
  int64_t num_experts = 8;
  int64_t top_k = 2;  ///< experts of a token, those with the highest scores
  RouterScores scores = RouterScores::softmax;
  /// Divides a token's K scores by their sum. After a softmax that is the softmax of the K highest
  /// logits alone, as Mixtral (Jiang et al., 2024) puts it.
  bool normalise = true;
  double scale = 1;  ///< of the weights, last
  /// Experts are in so many groups of neighbours, of which a token looks at `top_groups`: those whose
  /// two best scores have the largest sum (DeepSeek-AI, DeepSeek-V3, 2024, section 2.1.2).
  int64_t num_groups = 1, top_groups = 1;
  bool with_bias = false;  ///< of the logits, learned
  /// Its family's files have a selection bias for it.
  bool selection_bias = false;
};

/// Where the rows of N tokens go.
struct Routing {
  torch::Tensor experts;      ///< int64 [N, K]; of a dropped choice -1
  torch::Tensor weights;      ///< float32 [N, K], of the experts' results; of a dropped choice 0
  bool some_dropped = false;  ///< may some be?

  void visit_tensors(const auto& visit) { visit(experts), visit(weights); }
};

/// What a router found in one call for B sequences of T tokens, N = B T.
struct RouterCall {
  int64_t num_sequences = 0;     ///< B
  torch::Tensor logits, scores;  ///< float32 [N, E], with their graph
  torch::Tensor experts;         ///< int64 [N, K], those dropped, too
  torch::Tensor kept;            ///< bool [N, K]; undefined: all
};

/// What training asks of a router beside its family's options.
struct RouterTraining {
  /// Counted for each sequence of a call, so that what is dropped depends on that sequence alone. A
  /// token all of whose choices are dropped gets nothing from experts.
  ExpertCapacity capacity;
  /// In training the router's input is multiplied by uniform numbers of [1 - jitter, 1 + jitter), see
  /// kernels::Jitter; the experts' is not.
  double jitter = 0;
  /// In training; weights are of the scores all the same. Not with groups or a selection bias.
  ExpertSampling sampling = ExpertSampling::none;
  /// Tokens take the experts in turn, whatever their scores. For benchmarks.
  bool takes_turns = false;
};

/// A router, in float32 whatever the model's dtype: logits x W^T + b, scores of them, the K best. Its
/// weight [E, D] is the register's `weight`, as Hugging Face's `gate.weight`; b [E] its `bias`. Where a capacity
/// drops choices, `normalise` divides by the sum of those that stay, as DeepSpeed's gates of two and more do.
///
/// Random numbers are functions of (seed, step, `name`, row in the global batch, place in the row): they depend
/// neither on ranks nor on micro-batches nor on checkpointing. A training forward that draws some needs a
/// RandomScope (nn/dropout.h).
class RouterImpl : public Hookable {
 public:
  RouterImpl(int64_t dim, const RouterOptions& options, const torch::TensorOptions& tensors = {});
  Routing forward(const torch::Tensor& x);  ///< [B, T, D]

  const RouterOptions& options() const { return options_; }

  torch::Tensor weight, bias;  ///< bias undefined without one
  /// Added to the scores that experts are chosen by, not to their weights: float32 [E], or
  /// undefined (Wang et al., Auxiliary-Loss-Free Load Balancing, 2024).
  torch::Tensor selection_bias;
  RouterTraining training;
  std::string name = "router";  ///< of the layer, for its random numbers
  /// Sees each call, and gives the weights [N, K] to go on with: what it adds to the loss hangs on
  /// their graph. Empty: nothing.
  std::function<torch::Tensor(const RouterCall& call, const torch::Tensor& weights)> balance;

 private:
  kernels::DropoutKey numbers_of(const char* purpose, int64_t row_size) const;
  torch::Tensor chosen(const RouterCall& call) const;  ///< experts [N, K]
  /// Undefined: all stay.
  torch::Tensor kept(const RouterCall& call) const;

  RouterOptions options_;
};
using Router = Hooked<RouterImpl>;

}  // namespace tessera::nn
