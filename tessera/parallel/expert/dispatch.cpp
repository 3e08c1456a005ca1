#include "tessera/parallel/expert/dispatch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/held.h"
#include "tessera/autograd/recompute.h"
#include "tessera/kernels/expert_rows.h"

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
  auto result = at::empty(sizes, rows.options());
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
    return autograd::compute_once(
        1, [&]() -> variable_list { return {exchanged(rows, way.counts, way.axis)}; })[0];
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto [counts, axis] = *autograd::held<Way>(context, "way");
    return {exchanged(gradients[0], reversed(counts), axis), Tensor()};
  }
};

/// What each rank has for each expert, int64 [N, E] on the CPU, of this rank's `counts`.
Tensor gathered_counts(const Tensor& counts, const mesh::Axis& axis) {
  return autograd::compute_once(1, [&]() -> variable_list {
    const auto own = counts.cpu();
    auto all = at::empty({axis.size(), own.numel()}, own.options());
    axis.all_gather(all, own).wait();
    return {all};
  })[0];
}

RowCounts row_counts(const Tensor& counts) {
  const int64_t ranks = counts.size(0);
  const auto sums = counts.view({ranks, ranks, -1}).sum(2).contiguous();
  const auto* data = sums.const_data_ptr<int64_t>();
  return {data, data + sums.numel()};
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

Tensor of_part(
    const Tensor& x, const nn::Routing& routing, const TokenPart& part,
    const std::function<Tensor(const Tensor& x, const nn::Routing& routing)>& dispatched) {
  if (part.parts == 1) return dispatched(x, routing);
  const int64_t tokens = x.size(0), begin = tokens * part.index / part.parts,
                end = tokens * (part.index + 1) / part.parts;
  const auto own = [&](const Tensor& rows) { return rows.narrow(0, begin, end - begin); };
  const auto results = dispatched(own(x), {.experts = own(routing.experts),
                                           .weights = own(routing.weights),
                                           .some_dropped = routing.some_dropped});
  return at::constant_pad_nd(results, {0, 0, begin, tokens - end});
}

Tensor over_ranks(const Tensor& x, const nn::Routing& routing, int64_t num_experts,
                  const nn::ExpertProducts& products, const mesh::Axis& axis) {
  const int64_t ranks = axis.size();
  TORCH_CHECK_VALUE(num_experts % ranks == 0, "experts: expected a multiple of the ", ranks,
                    " ranks of ", axis.name(), ", got ", num_experts);
  if (ranks == 1) return nn::dispatch_here(x, routing, num_experts, products);
  const auto order = kernels::order_by_expert(routing.experts, num_experts, routing.some_dropped);
  const auto counts = gathered_counts(order.counts, axis);
  const auto sent = row_counts(counts);
  const auto arrived = exchange_rows(kernels::gather_rows(x, order), sent, axis);

  // They come by rank, each rank's by expert; the experts want them by expert.
  const int64_t here = num_experts / ranks;
  const auto of_own = counts.narrow(1, axis.rank() * here, here).contiguous();  // [N, E/N]
  const auto expert_of_row = at::arange(here, of_own.options())
                                 .repeat({ranks})
                                 .repeat_interleave(of_own.view({-1}))
                                 .to(x.device());
  const auto by_expert = kernels::order_by_expert(expert_of_row.unsqueeze(1), here);
  const auto results = products(kernels::gather_rows(arrived, by_expert), by_expert.counts);

  // Back to where they came: of rows with one expert each, the two maps change places.
  const kernels::ExpertOrder by_arrival{
      .slots = by_expert.places.flatten(), .places = by_expert.slots.unsqueeze(1), .counts = {}};
  const auto by_rank = kernels::gather_rows(results, by_arrival);
  return kernels::combine_rows(exchange_rows(by_rank, reversed(sent), axis), routing.weights,
                               order);
}

}  // namespace tessera::parallel
