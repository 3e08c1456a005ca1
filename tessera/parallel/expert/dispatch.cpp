#include "tessera/parallel/expert/dispatch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "tessera/autograd/held.h"
#include "tessera/autograd/recompute.h"
#include "tessera/kernels/expert_rows.h"

namespace tessera::parallel {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What each rank has for each expert in each part of its tokens, int64 [N, parts, E] on the CPU.
Tensor gathered_counts(const std::vector<kernels::ExpertOrder>& parts, const mesh::Axis& axis) {
  return autograd::compute_once(autograd::Operator::exchange, 1, [&]() -> variable_list {
    std::vector<Tensor> counts;
    for (const auto& part : parts) counts.push_back(part.counts);
    const auto own = at::stack(counts).cpu();
    auto all = at::empty({axis.size(), own.size(0), own.size(1)}, own.options());
    axis.all_gather(all, own).wait();
    return {all};
  })[0];
}

RowCounts row_counts(const Tensor& counts) {
  const int64_t ranks = counts.size(0);
  const auto sums = counts.reshape({ranks, ranks, -1}).sum(2).contiguous();
  const auto* data = sums.const_data_ptr<int64_t>();
  return {data, data + sums.numel()};
}

/// Rows that arrived: they come by rank, each rank's by expert; the experts want them by expert.
kernels::ExpertOrder order_of_arrived(const Tensor& of_own, c10::Device device) {
  const int64_t ranks = of_own.size(0), here = of_own.size(1);
  const auto expert_of_row = at::arange(here, of_own.options())
                                 .repeat({ranks})
                                 .repeat_interleave(of_own.reshape({-1}))
                                 .to(device);
  return kernels::order_by_expert(expert_of_row.unsqueeze(1), here);
}

/// Back to where they came: of rows with one expert each, the two maps change places.
Tensor by_arrival(const Tensor& results, const kernels::ExpertOrder& by_expert) {
  return kernels::gather_rows(
      results,
      {.slots = by_expert.places.flatten(), .places = by_expert.slots.unsqueeze(1), .counts = {}});
}

/// Rows one part after the other; one part has no node of a graph.
std::vector<Tensor> parts_of(const Tensor& rows, const std::vector<int64_t>& sizes) {
  return sizes.size() == 1 ? std::vector<Tensor>{rows} : rows.split_with_sizes(sizes);
}
std::vector<nn::Routing> parts_of(const nn::Routing& routing, const std::vector<int64_t>& sizes) {
  const auto experts = parts_of(routing.experts, sizes), weights = parts_of(routing.weights, sizes);
  std::vector<nn::Routing> parts;
  for (size_t p = 0; p < sizes.size(); ++p) {
    parts.push_back(
        {.experts = experts[p], .weights = weights[p], .some_dropped = routing.some_dropped});
  }
  return parts;
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

/// Which rows go where, and what is under way.
struct RowExchange::Journey {
  RowCounts counts;
  mesh::Axis axis;
  comm::Work there, back;
  Tensor returning;  // gradients, between the start and the end of their way

  /// Rows that come by `sent` and are written until `work` is done.
  Tensor start(const Tensor& rows, const RowCounts& sent, comm::Work& work) const {
    const auto ranks = static_cast<size_t>(axis.size()), rank = static_cast<size_t>(axis.rank());
    auto sizes = rows.sizes().vec();
    sizes[0] = 0;
    for (size_t s = 0; s < ranks; ++s) sizes[0] += sent[s * ranks + rank];
    auto result = at::empty(sizes, rows.options());
    work = axis.all_to_all_uneven(result, rows.contiguous(), sent);
    return result;
  }

  using Pointer = std::shared_ptr<Journey>;

  struct Departure : torch::autograd::Function<Departure> {
    static Tensor forward(AutogradContext* context, const Tensor& rows, const Pointer& journey) {
      autograd::hold(context, "journey", journey);
      return autograd::compute_once(autograd::Operator::exchange, 1, [&]() -> variable_list {
        return {journey->start(rows, journey->counts, journey->there)};
      })[0];
    }
    static variable_list backward(AutogradContext* context, const variable_list&) {
      const auto& journey = *autograd::held<Pointer>(context, "journey");
      journey->back.wait();
      return {std::exchange(journey->returning, {}), Tensor()};
    }
  };

  struct Arrival : torch::autograd::Function<Arrival> {
    static Tensor forward(AutogradContext* context, const Tensor& rows, const Pointer& journey) {
      autograd::hold(context, "journey", journey);
      journey->there.wait();
      return rows;
    }
    static variable_list backward(AutogradContext* context, variable_list gradients) {
      const auto& journey = *autograd::held<Pointer>(context, "journey");
      const auto& arrived = gradients[0];
      journey->returning = journey->start(arrived, reversed(journey->counts), journey->back);
      // Departure has what comes; it is told of as many rows as arrived, without keeping them.
      return {at::zeros({}, arrived.options()).expand_as(arrived), Tensor()};
    }
  };
};

RowExchange::RowExchange(const Tensor& rows, const RowCounts& counts, const mesh::Axis& axis)
    : journey_(std::make_shared<Journey>(Journey{.counts = counts, .axis = axis})),
      rows_(Journey::Departure::apply(rows, journey_)) {}

Tensor RowExchange::arrived() const { return Journey::Arrival::apply(rows_, journey_); }

Tensor of_part(
    const Tensor& x, const nn::Routing& routing, const TokenPart& part,
    const std::function<Tensor(const Tensor& x, const nn::Routing& routing)>& dispatched) {
  if (part.parts == 1) return dispatched(x, routing);
  const int64_t tokens = x.size(0), begin = part.begin(tokens), size = part.size(tokens);
  const auto own = [&](const Tensor& rows) { return rows.narrow(0, begin, size); };
  const auto results = dispatched(own(x), {.experts = own(routing.experts),
                                           .weights = own(routing.weights),
                                           .some_dropped = routing.some_dropped});
  return at::constant_pad_nd(results, {0, 0, begin, tokens - begin - size});
}

Tensor over_ranks(const Tensor& x, const nn::Routing& routing, int64_t num_experts,
                  const nn::ExpertProducts& products, const mesh::Axis& axis,
                  const Overlap& overlap) {
  const int64_t ranks = axis.size(), here = num_experts / ranks;
  TORCH_CHECK_VALUE(num_experts % ranks == 0, "experts: expected a multiple of the ", ranks,
                    " ranks of ", axis.name(), ", got ", num_experts);
  if (ranks == 1) {
    return nn::dispatch_here(x, routing, num_experts, products, overlap.meanwhile);
  }
  std::vector<int64_t> sizes;
  for (int64_t p = 0; p < overlap.degree; ++p) {
    sizes.push_back(TokenPart{.index = p, .parts = overlap.degree}.size(x.size(0)));
  }
  const auto tokens = parts_of(x, sizes);
  const auto routings = parts_of(routing, sizes);
  std::vector<kernels::ExpertOrder> orders;
  for (const auto& part : routings) {
    orders.push_back(kernels::order_by_expert(part.experts, num_experts, part.some_dropped));
  }
  const auto counts = gathered_counts(orders, axis);

  std::vector<RowCounts> sent;
  std::vector<RowExchange> there, back;
  for (size_t p = 0; p < sizes.size(); ++p) {
    sent.push_back(row_counts(counts.select(1, static_cast<int64_t>(p))));
    there.emplace_back(kernels::gather_rows(tokens[p], orders[p]), sent[p], axis);
  }
  overlap.meanwhile();
  for (size_t p = 0; p < sizes.size(); ++p) {
    const auto of_own =
        counts.select(1, static_cast<int64_t>(p)).narrow(1, axis.rank() * here, here);
    const auto by_expert = order_of_arrived(of_own, x.device());
    const auto rows = kernels::gather_rows(there[p].arrived(), by_expert);
    back.emplace_back(by_arrival(products(rows, by_expert.counts), by_expert), reversed(sent[p]),
                      axis);
  }
  std::vector<Tensor> results;
  for (size_t p = 0; p < sizes.size(); ++p) {
    results.push_back(kernels::combine_rows(back[p].arrived(), routings[p].weights, orders[p]));
  }
  return results.size() == 1 ? results[0] : at::cat(results);
}

}  // namespace tessera::parallel
