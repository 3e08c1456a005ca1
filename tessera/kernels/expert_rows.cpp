#include "tessera/kernels/expert_rows.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "tessera/autograd/apply.h"
#include "tessera/kernels/cpu/parallel.h"
#include "tessera/kernels/observed.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kNumbersPerTask = 1 << 15;  // worth a thread's start

int64_t tokens_per_task(int64_t slots, int64_t dim) {
  return std::max<int64_t>(1, kNumbersPerTask / std::max<int64_t>(1, slots * dim));
}

/// One call of the loops below: N tokens of K slots, rows of D numbers.
struct Sizes {
  int64_t tokens, slots, dim;
};

Sizes sizes_of(const at::Tensor& places, const at::Tensor& rows) {
  return {places.size(0), places.size(1), rows.size(1)};
}

/// What each slot finds at its place, nothing but zeros where it has none: values [R, ..] -> [N K, ..].
at::Tensor at_places(const at::Tensor& values, const at::Tensor& places) {
  if (values.size(0) == places.numel()) return values.index_select(0, places.flatten());
  auto nothing = values.sizes().vec();
  nothing[0] = 1;
  return at::cat({values, at::zeros(nothing, values.options())}).index_select(0, places.flatten());
}

/// out[n] = sum over j of weights[n, j] rows[places[n, j]].
at::Tensor sum_of_slots(const at::Tensor& rows, const at::Tensor& weights,
                        const at::Tensor& places) {
  const auto sizes = sizes_of(places, rows);
  if (!rows.is_cpu()) {
    auto of_slots = at_places(rows, places).view({sizes.tokens, sizes.slots, sizes.dim});
    if (!weights.defined()) return of_slots.sum(1);
    return of_slots.mul(weights.unsqueeze(2)).sum(1).to(rows.scalar_type());
  }
  auto out = at::empty({sizes.tokens, sizes.dim}, rows.options());
  const Observed run("tessera::sum_of_slots", {rows, weights, places, out});
  const int64_t num_places = rows.size(0);
  const auto* place = places.const_data_ptr<int64_t>();
  const auto* weight = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, rows.scalar_type(), "rows", [&] {
    using sum_t = at::opmath_type<scalar_t>;
    const auto* from = rows.const_data_ptr<scalar_t>();
    auto* to = out.data_ptr<scalar_t>();
    parallel_for(0, sizes.tokens, tokens_per_task(sizes.slots, sizes.dim),
                 [&](int64_t begin, int64_t end) {
                   std::vector<sum_t> sum(static_cast<size_t>(sizes.dim));
                   for (int64_t n = begin; n < end; ++n) {
                     std::ranges::fill(sum, sum_t{0});
                     for (int64_t slot = n * sizes.slots; slot < (n + 1) * sizes.slots; ++slot) {
                       if (place[slot] == num_places) continue;
                       const auto* row = from + place[slot] * sizes.dim;
                       const sum_t factor = weight == nullptr ? 1 : weight[slot];
                       for (int64_t d = 0; d < sizes.dim; ++d)
                         sum[d] += factor * static_cast<sum_t>(row[d]);
                     }
                     std::ranges::transform(sum, to + n * sizes.dim,
                                            [](sum_t x) { return static_cast<scalar_t>(x); });
                   }
                 });
  });
  return out;
}

/// Gradients of sum_of_slots by rows and by weights.
struct SlotGradients {
  at::Tensor rows, weights;
};

SlotGradients gradients_of_slots(const at::Tensor& grad, const at::Tensor& rows,
                                 const at::Tensor& weights, const ExpertOrder& order) {
  const auto sizes = sizes_of(order.places, rows);
  if (!rows.is_cpu()) {
    const auto of_slots = order.slots.div(sizes.slots, "floor");
    const auto spread = grad.index_select(0, of_slots);  // by place
    const auto factors = weights.flatten().index_select(0, order.slots);
    const auto dots = spread.to(at::kFloat).mul(rows).sum(1);
    return {spread.mul(factors.unsqueeze(1)).to(rows.scalar_type()),
            at_places(dots, order.places).view_as(weights)};
  }
  SlotGradients result{at::empty_like(rows), at::empty_like(weights)};
  const Observed run("tessera::sum_of_slots_backward",
                     {grad, rows, weights, order.places, result.rows, result.weights});
  const int64_t num_places = rows.size(0);
  const auto* place = order.places.const_data_ptr<int64_t>();
  const auto* weight = weights.const_data_ptr<float>();
  auto* by_weight = result.weights.data_ptr<float>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, rows.scalar_type(), "rows", [&] {
    using sum_t = at::opmath_type<scalar_t>;
    const auto* of_token = grad.const_data_ptr<scalar_t>();
    const auto* from = rows.const_data_ptr<scalar_t>();
    auto* to = result.rows.data_ptr<scalar_t>();
    parallel_for(0, sizes.tokens, tokens_per_task(sizes.slots, sizes.dim),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t slot = begin * sizes.slots; slot < end * sizes.slots; ++slot) {
                     if (place[slot] == num_places) {
                       by_weight[slot] = 0;
                       continue;
                     }
                     const auto* gradient = of_token + slot / sizes.slots * sizes.dim;
                     const auto* row = from + place[slot] * sizes.dim;
                     auto* by_row = to + place[slot] * sizes.dim;
                     const sum_t factor = weight[slot];
                     sum_t dot = 0;
                     for (int64_t d = 0; d < sizes.dim; ++d) {
                       const auto g = static_cast<sum_t>(gradient[d]);
                       by_row[d] = static_cast<scalar_t>(factor * g);
                       dot += g * static_cast<sum_t>(row[d]);
                     }
                     by_weight[slot] = static_cast<float>(dot);
                   }
                 });
  });
  return result;
}

struct GatherRows : torch::autograd::Function<GatherRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& slots,
                            const at::Tensor& places) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({places});
    return x.index_select(0, slots.div(places.size(1), "floor"));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto places = ctx->get_saved_variables()[0];
    return {sum_of_slots(grads[0].contiguous(), {}, places), {}, {}};
  }
};

struct CombineRows : torch::autograd::Function<CombineRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& weights,
                            const at::Tensor& slots, const at::Tensor& places) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({rows, weights, slots, places});
    return sum_of_slots(rows, weights, places);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto saved = ctx->get_saved_variables();
    auto [rows, weights] =
        gradients_of_slots(grads[0].contiguous(), saved[0], saved[1],
                           {.slots = saved[2], .places = saved[3], .counts = {}});
    return {rows, weights, {}, {}};
  }
};

/// The order of `chosen` [N K], the flattened choices of `sizes` [N, K]. Dropped ones come after all others.
ExpertOrder order_on_device(const at::Tensor& chosen, at::IntArrayRef sizes, int64_t num_experts,
                            bool some_dropped) {
  const auto experts =
      some_dropped ? at::where(chosen.lt(0), at::full({}, num_experts, chosen.options()), chosen)
                   : chosen;
  auto slots = at::argsort(experts, /*stable=*/true);
  auto places =
      at::empty_like(slots).scatter_(0, slots, at::arange(slots.numel(), slots.options()));
  auto counts = at::zeros({num_experts + 1}, slots.options())
                    .scatter_add_(0, experts, at::ones_like(slots))
                    .narrow(0, 0, num_experts);
  if (some_dropped) {
    const auto num_places = counts.sum().item<int64_t>();
    slots = slots.narrow(0, 0, num_places), places.clamp_max_(num_places);
  }
  return {.slots = slots, .places = places.view(sizes), .counts = counts};
}

ExpertOrder order_here(const at::Tensor& experts, int64_t num_experts) {
  const auto* expert = experts.const_data_ptr<int64_t>();
  ExpertOrder order{.slots = {},
                    .places = at::empty_like(experts),
                    .counts = at::zeros({num_experts}, experts.options())};
  auto* counts = order.counts.data_ptr<int64_t>();
  int64_t num_places = 0;
  for (int64_t slot = 0; slot < experts.numel(); ++slot) {
    if (expert[slot] < 0) continue;
    ++counts[expert[slot]], ++num_places;
  }
  std::vector<int64_t> next(static_cast<size_t>(num_experts), 0);
  for (size_t e = 1; e < next.size(); ++e) next[e] = next[e - 1] + counts[e - 1];
  order.slots = at::empty({num_places}, experts.options());
  auto* slots = order.slots.data_ptr<int64_t>();
  auto* places = order.places.data_ptr<int64_t>();
  for (int64_t slot = 0; slot < experts.numel(); ++slot) {
    places[slot] = num_places;
    if (expert[slot] < 0) continue;
    places[slot] = next[static_cast<size_t>(expert[slot])]++;
    slots[places[slot]] = slot;
  }
  return order;
}

}  // namespace

ExpertOrder order_by_expert(const at::Tensor& experts, int64_t num_experts, bool some_dropped) {
  return experts.is_cpu()
             ? order_here(experts.contiguous(), num_experts)
             : order_on_device(experts.flatten(), experts.sizes(), num_experts, some_dropped);
}

at::Tensor gather_rows(const at::Tensor& x, const ExpertOrder& order) {
  return autograd::apply<GatherRows>(x, order.slots, order.places);
}

at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weights,
                        const ExpertOrder& order) {
  return autograd::apply<CombineRows>(rows, weights, order.slots, order.places);
}

}  // namespace tessera::kernels
