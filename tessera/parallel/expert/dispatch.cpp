#include "tessera/parallel/expert/dispatch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/held.h"

namespace tessera::parallel {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor exchanged(const Tensor& rows, const RowCounts& counts, const mesh::Axis& axis) {
  const auto ranks = static_cast<size_t>(axis.size()), rank = static_cast<size_t>(axis.rank());
  auto sizes = rows.sizes().vec();
  sizes[0] = 0;
  for (size_t s = 0; s < ranks; ++s) sizes[0] += counts[s * ranks + rank];
  const auto result = at::empty(sizes, rows.options());
  axis.all_to_all_uneven(result, rows.contiguous(), counts).wait();
  return result;
}

struct Way {
  RowCounts counts;
  mesh::Axis axis;
};

struct ExchangeRows : torch::autograd::Function<ExchangeRows> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Way& way) {
    autograd::hold(context, "way", way);
    return exchanged(rows, way.counts, way.axis);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto [counts, axis] = *autograd::held<Way>(context, "way");
    return {exchanged(gradients[0], reversed(counts), axis), Tensor()};
  }
};

/// What each rank has for each expert, int64 [N, E] on the CPU.
Tensor gathered_counts(const Tensor& experts, int64_t num_experts, const mesh::Axis& axis) {
  const auto own = at::bincount(experts, {}, num_experts).cpu();
  const auto counts = at::empty({axis.size(), num_experts}, own.options());
  axis.all_gather(counts, own).wait();
  return counts;
}

RowCounts row_counts(const Tensor& counts) {
  const int64_t ranks = counts.size(0);
  const auto sums = counts.view({ranks, ranks, -1}).sum(2).contiguous();
  const auto* data = sums.const_data_ptr<int64_t>();
  return {data, data + sums.numel()};
}

Tensor places_after(const Tensor& order) {
  const auto places = at::empty_like(order);
  places.index_copy_(0, order, at::arange(order.numel(), order.options()));
  return places;
}

}  // namespace

RowCounts reversed(const RowCounts& counts) {
  size_t ranks = 0;
  while (ranks * ranks < counts.size()) ++ranks;
  RowCounts back(counts.size());
  for (size_t s = 0; s < ranks; ++s) {
    for (size_t d = 0; d < ranks; ++d) back[d * ranks + s] = counts[s * ranks + d];
  }
  return back;
}

Tensor exchange_rows(const Tensor& rows, const RowCounts& counts, const mesh::Axis& axis) {
  if (axis.size() == 1) return rows;
  return ExchangeRows::apply(rows, Way{counts, axis});
}

Tensor over_ranks(const Tensor& x, const ExpertChoice& choice, const OwnExperts& own_experts,
                  const mesh::Axis& axis) {
  const int64_t ranks = axis.size(), per_token = choice.experts.size(1);
  TORCH_CHECK_VALUE(choice.num_experts % ranks == 0, "experts: expected a multiple of the ", ranks,
                    " ranks of ", axis.name(), ", got ", choice.num_experts);
  const auto experts = choice.experts.reshape({-1});
  const auto counts = gathered_counts(experts, choice.num_experts, axis);
  const auto sent = row_counts(counts);
  const auto order = experts.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto rows = x.index_select(0, order.floor_divide(per_token));
  const auto arrived = exchange_rows(rows, sent, axis);

  // They come by rank, each rank's by expert; the experts want them by expert.
  const int64_t here = choice.num_experts / ranks;
  const auto of_own = counts.narrow(1, axis.rank() * here, here).contiguous();  // [N, E/N]
  const auto expert_of_row = at::arange(here, of_own.options())
                                 .repeat({ranks})
                                 .repeat_interleave(of_own.view({-1}))
                                 .to(x.device());
  const auto by_expert = expert_of_row.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto results = own_experts(arrived.index_select(0, by_expert), of_own.sum(0));

  const auto returned =
      exchange_rows(results.index_select(0, places_after(by_expert)), reversed(sent), axis);
  const auto by_token =
      returned.index_select(0, places_after(order)).view({-1, per_token, x.size(1)});
  return (by_token * choice.weights.unsqueeze(2)).sum(1).to(x.scalar_type());
}

}  // namespace tessera::parallel
