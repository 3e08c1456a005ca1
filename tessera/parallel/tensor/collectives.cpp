#include "tessera/parallel/tensor/collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "tessera/autograd/held.h"
#include "tessera/autograd/recompute.h"
#include "tessera/autograd/shared_input.h"
#include "tessera/base/error.h"
#include "tessera/kernels/autocast.h"

namespace tessera::parallel {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// [.., T, D] as [B, N, T/N, D].
Tensor by_part(const Tensor& x, int64_t parts) {
  const int64_t length = x.size(-2);
  TORCH_CHECK_VALUE(length % parts == 0, "sequence length: expected a multiple of the ", parts,
                    " ranks of tp, got ", length, "; change it, or set sequence_parallel to false");
  return x.reshape({-1, parts, length / parts, x.size(-1)});
}

std::vector<int64_t> with_length(const Tensor& x, int64_t length) {
  auto sizes = x.sizes().vec();
  sizes[sizes.size() - 2] = length;
  return sizes;
}

/// What was begun, and what comes of it.
using Begun = autograd::SharedInput::Finish;

Begun begin_all_reduce(const Tensor& x, const mesh::Axis& axis) {
  auto work = std::make_shared<comm::Work>(axis.all_reduce(x));
  return [x, work] {
    work->wait();
    return x;
  };
}

Begun begin_gather(const Tensor& part, const mesh::Axis& axis) {
  const int64_t ranks = axis.size(), length = part.size(-2), dim = part.size(-1);
  const int64_t rows = part.numel() / (length * dim);
  const auto gathered = at::empty({ranks, rows, length, dim}, part.options());
  const auto own = part.contiguous();
  auto work = std::make_shared<comm::Work>(axis.all_gather(gathered, own));
  return [gathered, own, sizes = with_length(part, ranks * length), work] {
    work->wait();
    // With one row they are in their places.
    return gathered.transpose(0, 1).reshape(sizes);
  };
}

Begun begin_sum(const Tensor& summand, const mesh::Axis& axis) {
  const auto parts = by_part(summand, axis.size()).transpose(0, 1).contiguous();
  const auto own =
      at::empty(with_length(summand, summand.size(-2) / axis.size()), summand.options());
  auto work = std::make_shared<comm::Work>(axis.reduce_scatter(own, parts));
  return [parts, own, work] {
    work->wait();
    return own;
  };
}

Tensor all_reduced(const Tensor& x, const mesh::Axis& axis) { return begin_all_reduce(x, axis)(); }

Tensor gather_positions(const Tensor& part, const mesh::Axis& axis) {
  return begin_gather(part, axis)();
}

Tensor sum_positions(const Tensor& summand, const mesh::Axis& axis) {
  return begin_sum(summand, axis)();
}

Tensor take_positions(const Tensor& x, const mesh::Axis& axis) {
  return by_part(x, axis.size())
      .select(1, axis.rank())
      .reshape(with_length(x, x.size(-2) / axis.size()));
}

/// A tensor whose memory may be written to: `x` itself if nobody else has it.
Tensor to_write(Tensor x) {
  const bool alone = x.use_count() == 1 && x.storage().use_count() == 1 && x.is_contiguous();
  return alone ? x : x.clone(at::MemoryFormat::Contiguous);
}

struct Entry {
  Activations to;
  autograd::SharedInputPtr shared;
};

struct Enter : torch::autograd::Function<Enter> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Entry& entry) {
    autograd::hold(context, "entry", entry);
    const auto& to = entry.to;
    return to.sequence ? gather_positions(x, to.axis) : x.view_as(x);
  }
  /// Takes the gradient out of what autograd hands over, so that nobody else has it.
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    const auto [to, shared] = *autograd::held<Entry>(context, "entry");
    auto gradient = std::move(gradients[0]);
    const auto sum = to.sequence ? begin_sum(gradient, to.axis)
                                 : begin_all_reduce(to_write(std::move(gradient)), to.axis);
    gradient.reset();
    shared->run();
    return {sum(), Tensor()};
  }
};

struct Leave : torch::autograd::Function<Leave> {
  static Tensor forward(AutogradContext* context, const Tensor& summand, const Activations& to) {
    autograd::hold(context, "to", to);
    return autograd::compute_once(autograd::Operator::sum, 1, [&]() -> variable_list {
      return {to.sequence ? sum_positions(summand, to.axis)
                          : all_reduced(summand.clone(at::MemoryFormat::Contiguous), to.axis)};
    })[0];
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto [axis, sequence] = *autograd::held<Activations>(context, "to");
    return {sequence ? gather_positions(gradients[0], axis) : gradients[0], Tensor()};
  }
};

struct SumOver : torch::autograd::Function<SumOver> {
  static Tensor forward(AutogradContext* context, const Tensor& part, const mesh::Axis& axis) {
    autograd::hold(context, "axis", axis);
    return all_reduced(part.clone(at::MemoryFormat::Contiguous), axis);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto axis = *autograd::held<mesh::Axis>(context, "axis");
    return {all_reduced(gradients[0].clone(at::MemoryFormat::Contiguous), axis), Tensor()};
  }
};

struct OwnPositions : torch::autograd::Function<OwnPositions> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Activations& to) {
    autograd::hold(context, "to", to);
    return take_positions(x, to.axis);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gather_positions(gradients[0], autograd::held<Activations>(context, "to")->axis),
            Tensor()};
  }
};

struct SideBySide : torch::autograd::Function<SideBySide> {
  static Tensor forward(AutogradContext* context, const Tensor& part,
                        const std::vector<int64_t>& sizes, const mesh::Axis& axis) {
    const int64_t rows = part.numel() / std::max<int64_t>(1, part.size(-1));
    int64_t begin = 0;
    std::vector<Tensor> parts;
    for (size_t rank = 0; rank < sizes.size(); ++rank) {
      if (static_cast<int>(rank) == axis.rank()) {
        context->saved_data["begin"] = begin;
        context->saved_data["size"] = sizes[rank];
      }
      begin += sizes[rank];
      parts.push_back(at::empty({rows, sizes[rank]}, part.options()));
    }
    axis.all_gather_uneven(parts, part.reshape({rows, part.size(-1)}).contiguous()).wait();
    auto whole = part.sizes().vec();
    whole.back() = begin;
    return at::cat(parts, 1).view(whole);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0].narrow(-1, context->saved_data["begin"].toInt(),
                                context->saved_data["size"].toInt()),
            Tensor(), Tensor()};
  }
};

}  // namespace

Tensor enter(const Tensor& x, const Activations& to, bool shared) {
  if (to.axis.size() == 1) return x;
  const auto part = kernels::autocast(x);
  // What is computed again has its backward next: it keeps what was gathered.
  const bool gathers_again = to.sequence && torch::autograd::get_current_graph_task_id() == -1;
  const auto by = std::make_shared<autograd::SharedInput>([=](const Tensor& kept) -> Begun {
    if (gathers_again) return begin_gather(kept, to.axis);
    return [kept] { return kept; };
  });
  auto input = Enter::apply(part, Entry{to, by});
  if (shared && input.requires_grad()) {
    autograd::share({{.input = input, .kept = gathers_again ? part : input, .by = by}});
  }
  return input;
}

Tensor leave(const Tensor& summand, const Activations& activations) {
  if (activations.axis.size() == 1) return summand;
  return Leave::apply(summand, activations);
}

Tensor sum_over(const Tensor& part, const mesh::Axis& axis) { return SumOver::apply(part, axis); }

std::function<void(const Tensor&)> adding_over(const mesh::Axis& axis) {
  if (axis.size() == 1) return {};
  return [axis](const Tensor& numbers) { axis.all_reduce(numbers).wait(); };
}

kernels::ProductOverRanksPtr leave_product(const Activations& activations) {
  if (activations.axis.size() == 1) return {};
  auto over_ranks = std::make_shared<kernels::ProductOverRanks>();
  over_ranks->sum = [activations](const Tensor& summand) {
    return activations.sequence ? sum_positions(summand, activations.axis)
                                : all_reduced(summand, activations.axis);
  };
  over_ranks->gradient = [activations](const Tensor& gradient) {
    return activations.sequence ? gather_positions(gradient, activations.axis) : gradient;
  };
  return over_ranks;
}

Tensor own_positions(const Tensor& x, const Activations& activations) {
  if (activations.axis.size() == 1 || !activations.sequence) return x;
  return OwnPositions::apply(x, activations);
}

Tensor side_by_side(const Tensor& part, const std::vector<int64_t>& sizes, const mesh::Axis& axis) {
  if (axis.size() == 1) return part;
  return SideBySide::apply(part, sizes, axis);
}

}  // namespace tessera::parallel
