#include "tessera/nn/kept_choices.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include "tessera/kernels/random_bits.h"

namespace tessera::nn {
namespace {

/// The slots n K + j of all choices, those that are preferred first.
torch::Tensor by_preference(const Choices& choices, DropPolicy policy,
                            const kernels::DropoutKey& drawn) {
  const auto& experts = choices.experts;
  const auto slots = at::arange(experts.numel(), experts.options());
  const auto highest_first = [](const torch::Tensor& values) {
    return at::argsort(values.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/true);
  };
  switch (policy) {
    case DropPolicy::probs:
      // Alike tokens side by side have scores that are equal but for roundings, which layouts have
      // others of: in fewer digits they are equal, and the earlier one stays.
      return highest_first(choices.scores.detach().gather(1, experts).to(torch::kBFloat16));
    case DropPolicy::position:
      return slots;
    case DropPolicy::choice:
      return slots.view(experts.sizes()).t().flatten();
    case DropPolicy::random: {
      const auto tokens = at::arange(experts.size(0), experts.options()).unsqueeze(1);
      const auto positions = tokens * choices.scores.size(1) + experts + drawn.first_position;
      return highest_first(kernels::random_bits(positions, drawn));
    }
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace

torch::Tensor kept_choices(const Choices& choices, int64_t capacity, DropPolicy policy,
                           const kernels::DropoutKey& drawn) {
  const torch::NoGradGuard no_grad;
  const auto& experts = choices.experts;
  const int64_t num_experts = choices.scores.size(1), num_tokens = experts.size(0);
  if (num_tokens == 0) return torch::ones_like(experts, torch::kBool);
  // A queue for each sequence and expert.
  const auto sequences = at::arange(choices.num_sequences, experts.options())
                             .repeat_interleave(num_tokens / choices.num_sequences)
                             .unsqueeze(1);
  const auto queues = (sequences * num_experts + experts).flatten();
  const auto preferred = by_preference(choices, policy, drawn);
  const auto in_queues =
      preferred.index_select(0, at::argsort(queues.index_select(0, preferred), /*stable=*/true));
  const auto lengths = at::zeros({choices.num_sequences * num_experts}, experts.options())
                           .scatter_add_(0, queues, torch::ones_like(queues));
  const auto first =
      (lengths.cumsum(0) - lengths).index_select(0, queues.index_select(0, in_queues));
  const auto kept = (at::arange(queues.numel(), experts.options()) - first).lt(capacity);
  return torch::empty_like(kept).scatter_(0, in_queues, kept).view(experts.sizes());
}

}  // namespace tessera::nn
