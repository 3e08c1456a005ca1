#include "tessera/nn/router.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "tessera/base/portable_numbers.h"
#include "tessera/kernels/random_bits.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/kept_choices.h"

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

/// Scores [N, E] where a token looks at its best groups, elsewhere minus infinity.
torch::Tensor in_best_groups(const torch::Tensor& scores, const RouterOptions& options) {
  if (options.top_groups == options.num_groups) return scores;
  constexpr int64_t kBest = 2;
  const auto groups = scores.view({scores.size(0), options.num_groups, -1});
  const auto of_group = std::get<0>(groups.topk(std::min(kBest, groups.size(2)), 2)).sum(2);
  const auto best = std::get<1>(of_group.topk(options.top_groups, 1));
  const auto others = torch::ones_like(of_group, torch::kBool).scatter(1, best, false);
  return groups.masked_fill(others.unsqueeze(2), -INFINITY).view(scores.sizes());
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
  TORCH_CHECK_VALUE(
      options.num_groups >= 1 && options.num_experts % options.num_groups == 0 &&
          options.top_groups >= 1 && options.top_groups <= options.num_groups &&
          options.top_k <= options.num_experts / options.num_groups * options.top_groups,
      "Router: expected groups that divide ", options.num_experts, " experts, and ", options.top_k,
      " experts in those looked at, got ", options.top_groups, " of ", options.num_groups);
  weight = register_parameter("weight", torch::empty({options.num_experts, dim}, tensors));
  if (options.with_bias) {
    bias = register_parameter("bias", torch::empty({options.num_experts}, tensors));
  }
}

/// The key of random numbers for a call whose rows have `row_size` numbers.
kernels::DropoutKey RouterImpl::numbers_of(const char* purpose, int64_t row_size) const {
  const auto& context = random_context(name);
  return {.seed = context.seed,
          .step = context.step,
          .layer = name_key(name + purpose),
          .first_position = context.first_row * row_size};
}

torch::Tensor RouterImpl::chosen(const RouterCall& call) const {
  const bool draws = training.sampling != ExpertSampling::none && call.num_sequences > 0 &&
                     trains(*this);  // of the caller's grad mode
  const torch::NoGradGuard no_grad;
  const auto best = [&](const torch::Tensor& by) {
    return std::get<1>(by.topk(options_.top_k, 1));
  };
  const auto& logits = call.logits;
  if (training.takes_turns) return in_turn(logits.size(0), options_, logits.device());
  if (draws) {
    const auto key = numbers_of(".sample", logits.numel() / call.num_sequences);
    auto drawn_by = logits + kernels::gumbel_noise(logits, key);
    if (training.sampling == ExpertSampling::but_first) {
      drawn_by.scatter_(1, logits.argmax(1, /*keepdim=*/true), INFINITY);
    }
    return best(drawn_by);
  }
  const auto scores = selection_bias.defined() ? call.scores + selection_bias : call.scores;
  return best(in_best_groups(scores, options_));
}

torch::Tensor RouterImpl::kept(const RouterCall& call) const {
  const auto& capacity = training.capacity;
  const bool draws = trains(*this);
  const auto factor = draws ? capacity.factor : capacity.eval_factor;
  if (!factor || call.num_sequences == 0) return {};
  const int64_t num_experts = call.scores.size(1);
  const int64_t seq_len = call.experts.size(0) / call.num_sequences;
  const auto most = expert_capacity(seq_len, num_experts, options_.top_k, *factor, capacity.least);
  if (most >= seq_len) return {};
  const Choices choices{call.num_sequences, call.experts, call.scores};
  if (capacity.policy != DropPolicy::random) return kept_choices(choices, most, capacity.policy);
  // What does not train has no step to draw for.
  if (!draws) return kept_choices(choices, most, DropPolicy::position);
  return kept_choices(choices, most, capacity.policy, numbers_of(".drop", seq_len * num_experts));
}

Routing RouterImpl::forward(const torch::Tensor& x) {
  RouterCall call;
  call.num_sequences = x.size(0);
  kernels::Jitter jitter;
  if (training.jitter > 0 && x.numel() > 0 && trains(*this)) {
    jitter = {.eps = training.jitter, .key = numbers_of(".jitter", x.numel() / x.size(0))};
  }
  call.logits = kernels::router_logits(x.reshape({-1, x.size(-1)}), weight, bias, jitter);
  call.scores = scores_of(call.logits, options_.scores);
  call.experts = chosen(call);
  call.kept = kept(call);
  auto weights = call.scores.gather(1, call.experts);
  if (call.kept.defined()) weights = weights * call.kept;
  if (options_.normalise) {
    constexpr double kTiny = 1e-20;  // sigmoids of very low logits may all be 0, and all be dropped
    weights = weights / (weights.sum(1, /*keepdim=*/true) + kTiny);
  }
  if (options_.scale != 1) weights = weights * options_.scale;
  if (balance) weights = balance(call, weights);
  if (!call.kept.defined()) return {.experts = call.experts, .weights = weights};
  const auto nobody = torch::full({}, -1, call.experts.options());
  return {.experts = at::where(call.kept, call.experts, nobody),
          .weights = weights,
          .some_dropped = true};
}

}  // namespace tessera::nn
