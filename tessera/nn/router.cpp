#include "tessera/nn/router.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include "tessera/kernels/router.h"

namespace tessera::nn {
namespace {

torch::Tensor scores_of(const torch::Tensor& logits, RouterScores scores) {
  switch (scores) {
    case RouterScores::softmax:
      return logits.softmax(1);
    case RouterScores::sigmoid:
      return logits.sigmoid();
  }
  TORCH_INTERNAL_ASSERT(false);
}

/// The experts of N tokens, K each, one after the other.
torch::Tensor in_turn(int64_t tokens, const RouterOptions& options, torch::Device device) {
  const auto slots = at::arange(tokens * options.top_k, torch::dtype(torch::kInt64).device(device));
  return slots.remainder(options.num_experts).view({tokens, options.top_k});
}

}  // namespace

RouterImpl::RouterImpl(int64_t dim, const RouterOptions& options,
                       const torch::TensorOptions& tensors)
    : options_(options) {
  TORCH_CHECK_VALUE(options.top_k >= 1 && options.top_k <= options.num_experts,
                    "Router: expected top_k in [1, ", options.num_experts, "], got ",
                    options.top_k);
  weight = register_parameter("weight", torch::empty({options.num_experts, dim}, tensors));
}

Routing RouterImpl::forward(const torch::Tensor& x) {
  RouterCall call{.num_sequences = x.size(0), .logits = {}, .scores = {}, .experts = {}};
  call.logits = kernels::router_logits(x.reshape({-1, x.size(-1)}), weight);
  call.scores = scores_of(call.logits, options_.scores);
  const auto chosen_by = call.scores.detach();
  call.experts =
      takes_turns ? in_turn(call.logits.size(0), options_, x.device())
                  : std::get<1>((selection_bias.defined() ? chosen_by + selection_bias : chosen_by)
                                    .topk(options_.top_k, 1));
  auto weights = call.scores.gather(1, call.experts);
  if (options_.normalise) {
    constexpr double kTiny = 1e-20;  // sigmoids of very low logits may all be 0
    weights = weights / (weights.sum(1, /*keepdim=*/true) + kTiny);
  }
  if (options_.scale != 1) weights = weights * options_.scale;
  if (balance) weights = balance(call, weights);
  return {call.experts, weights};
}

}  // namespace tessera::nn
