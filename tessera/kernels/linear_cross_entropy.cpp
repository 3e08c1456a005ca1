#include "tessera/kernels/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/autograd/gradient_sink.h"
#include "tessera/base/loss_chunk.h"
#include "tessera/kernels/autocast.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/fused.h"
#include "tessera/kernels/observed.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Problem {
  at::Tensor hidden, weight, targets;
  LinearCrossEntropyOptions options;
  bool want_hidden, want_weight;
  at::ScalarType weight_dtype;  ///< of the gradient returned: under autocast not weight's
};

struct Result {
  at::Tensor loss, grad_hidden, grad_weight;
};

int64_t rows_per_chunk(const Problem& problem) {
  const int64_t rows = problem.hidden.size(0);
  if (problem.options.chunk_rows > 0) return std::min(rows, problem.options.chunk_rows);
  return loss_chunk_rows(rows, problem.weight.size(0), problem.hidden.is_cuda());
}

void check_targets(const at::Tensor& targets, int64_t vocab, int64_t ignore_index) {
  if (!targets.device().is_cpu()) return;
  const int64_t* target = targets.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    TORCH_CHECK_INDEX(target[i] == ignore_index || (target[i] >= 0 && target[i] < vocab),
                      "linear_cross_entropy: expected targets in [0, ", vocab, ") or ",
                      ignore_index, ", got ", target[i], " at position ", i);
  }
}

/// Some rows on their way through the loss.
struct Chunk {
  at::Tensor logits;    ///< destroyed
  at::Tensor gradient;  ///< of the logits; undefined: not asked for
  at::Tensor targets;
  at::Tensor losses;  ///< float64, unscaled; 0 where ignored
  at::Tensor slopes;  ///< of the whole loss by each row's; undefined without gradient
};

/// Losses of a chunk and, if it is defined, its gradient.
void fused_chunk(const Chunk& chunk, const LinearCrossEntropyOptions& options,
                 at::ScalarType dtype) {
  const auto& gradient = chunk.gradient;
  const Observed run("tessera::cross_entropy",
                     {chunk.logits, gradient, chunk.targets, chunk.losses, chunk.slopes});
  fused_kernels(chunk.logits)
      .cross_entropy({.logits = chunk.logits.data_ptr<float>(),
                      .gradient = gradient.defined() ? gradient.data_ptr() : nullptr,
                      .targets = chunk.targets.const_data_ptr<int64_t>(),
                      .losses = chunk.losses.data_ptr<double>(),
                      .scales = gradient.defined() ? chunk.slopes.const_data_ptr<float>() : nullptr,
                      .rows = chunk.logits.size(0),
                      .vocab = chunk.logits.size(1),
                      .ignore_index = options.ignore_index,
                      .type = element_of(dtype)});
}

/// The same in LibTorch's operators.
void plain_chunk(const Chunk& chunk, const LinearCrossEntropyOptions& options) {
  const auto log_probabilities = at::log_softmax(chunk.logits, -1);
  const auto counted = (chunk.targets != options.ignore_index).unsqueeze(1);
  const auto index = chunk.targets.unsqueeze(1).clamp_min(0);
  if (chunk.gradient.defined()) {
    auto grad = log_probabilities.exp();
    grad.scatter_add_(1, index, at::full_like(index, -1, grad.options()));
    chunk.gradient.copy_(grad.mul_(chunk.slopes.unsqueeze(1)).mul_(counted));
  }
  chunk.losses.copy_(-(log_probabilities.gather(1, index) * counted).squeeze(1));
}

/// The same where other ranks have the other classes.
void divided_chunk(const Chunk& chunk, const LinearCrossEntropyOptions& options) {
  const auto& [logits, gradient, targets, losses, slopes] = chunk;
  const auto& vocabulary = options.vocabulary;
  const auto largest =
      logits.size(1) > 0 ? logits.amax(1) : at::full({logits.size(0)}, -INFINITY, logits.options());
  vocabulary.maximum(largest);
  auto shifted = logits.sub_(largest.unsqueeze(1));

  const auto counted = targets != options.ignore_index;
  const auto own = targets.ge(vocabulary.first)
                       .logical_and_(targets < vocabulary.first + logits.size(1))
                       .logical_and_(counted)
                       .unsqueeze(1);
  // A target that another rank has counts as the class next to it here, times zero.
  const auto index = (targets - vocabulary.first).clamp_(0, logits.size(1) - 1).unsqueeze_(1);
  const auto sums = at::zeros({2, logits.size(0)}, logits.options());  // target's logit, of exp
  if (logits.size(1) > 0) {
    sums[0].copy_(shifted.gather(1, index).masked_fill_(own.logical_not(), 0).squeeze(1));
  }
  at::exp_(shifted);
  sums[1].copy_(shifted.sum(1));
  vocabulary.sum(sums);
  if (gradient.defined()) {
    shifted.mul_((counted / sums[1] * slopes).unsqueeze(1));
    // Before rounding to 16 bits: of a probability close to 1 little but the rounding would be
    // left.
    if (logits.size(1) > 0) shifted.scatter_add_(1, index, -slopes.unsqueeze(1) * own);
    if (gradient.const_data_ptr() != shifted.const_data_ptr()) gradient.copy_(shifted);
  }
  losses.copy_((sums[1].log() - sums[0]).mul_(counted));
}

/// Caps the logits in place; gives the derivative where it is wanted.
at::Tensor soften(const at::Tensor& logits, double softcap, bool want_slope) {
  if (softcap == 0) return {};
  at::tanh_(logits.div_(softcap));
  auto slope = want_slope ? logits.square().neg_().add_(1) : at::Tensor();
  logits.mul_(softcap);
  return slope;
}

/// In place; some rows at a time, as numbers of 16 bits are brought to float32 for it.
void multiply_by_rows(const at::Tensor& gradient, const at::Tensor& slope) {
  constexpr int64_t kRows = 64;
  for (int64_t first = 0; first < gradient.size(0); first += kRows) {
    const int64_t count = std::min(kRows, gradient.size(0) - first);
    gradient.narrow(0, first, count).mul_(slope.narrow(0, first, count));
  }
}

/// What the gradients of all rows go to.
struct Gradients {
  at::Tensor of_hidden, of_weight;  ///< undefined: not asked for
  bool adds = false;                ///< of_weight holds something already
};

/// Losses of all rows, float64 [N]; with `slopes` of the loss by each of them, the gradients too.
at::Tensor pass_over(const Problem& problem, const at::Tensor& slopes, const Gradients& into) {
  const auto& [hidden, weight, targets, options, want_hidden, want_weight, _] = problem;
  const int64_t rows = hidden.size(0), vocab = weight.size(0);
  const int64_t chunk_rows = rows_per_chunk(problem);
  const bool want_gradient = slopes.defined();
  const auto wide = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const bool fused = can_fuse({hidden, weight}) && targets.device() == hidden.device();
  const auto all_logits = at::empty({chunk_rows, vocab}, hidden.options().dtype(wide));
  const auto all_gradients = !want_gradient ? at::Tensor()
                             : hidden.scalar_type() == wide
                                 ? all_logits
                                 : at::empty({chunk_rows, vocab}, hidden.options());
  auto losses = at::empty({rows}, hidden.options().dtype(at::kDouble));
  for (int64_t first = 0; first < rows; first += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - first);
    const auto part = hidden.narrow(0, first, count);
    const Chunk chunk{.logits = all_logits.narrow(0, 0, count),
                      .gradient = want_gradient ? all_gradients.narrow(0, 0, count) : at::Tensor(),
                      .targets = targets.narrow(0, first, count),
                      .losses = losses.narrow(0, first, count),
                      .slopes = want_gradient ? slopes.narrow(0, first, count) : at::Tensor()};
    const auto& gradient = chunk.gradient;
    multiply(chunk.logits, part, weight.t(), /*accumulate=*/false);
    const auto slope = soften(chunk.logits, options.softcap, want_gradient);
    if (options.vocabulary.divided()) {
      divided_chunk(chunk, options);
    } else if (fused) {
      fused_chunk(chunk, options, hidden.scalar_type());
    } else {
      plain_chunk(chunk, options);
    }
    if (slope.defined()) multiply_by_rows(gradient, slope);
    if (!want_gradient) continue;
    if (want_hidden) multiply(into.of_hidden.narrow(0, first, count), gradient, weight, false);
    if (want_weight) multiply(into.of_weight, gradient.t(), part, into.adds || first > 0);
  }
  return losses;
}

/// 0-d. On the CPU in one order, whatever the number of threads.
at::Tensor sum_of(const at::Tensor& losses) {
  if (!losses.device().is_cpu()) return losses.sum();
  const auto* first = losses.const_data_ptr<double>();
  return at::scalar_tensor(std::accumulate(first, first + losses.numel(), 0.0), losses.options());
}

/// LibTorch's sum of two dtypes takes a GPU three times as long as the memory does.
void add_to(at::Tensor sink, const at::Tensor& sum) {
  if (!autograd::adds_to(sink)) {
    sink.copy_(sum);
    return;
  }
  const auto* kernels = fused_kernels(sink.device().type());
  const bool fits = kernels != nullptr && kernels->add != nullptr && sink.is_contiguous() &&
                    sum.is_contiguous() && sum.scalar_type() == at::kFloat &&
                    at::isReducedFloatingType(sink.scalar_type());
  if (!fits) {
    sink.add_(sum);
    return;
  }
  const Observed run("tessera::add", {sink, sink, sum});
  kernels->add({.to = sink.data_ptr(),
                .from = sum.const_data_ptr<float>(),
                .count = sum.numel(),
                .type = element_of(sink.scalar_type())});
}

Result compute(const Problem& problem) {
  const auto& [hidden, weight, targets, options, want_hidden, want_weight, _] = problem;
  const bool want_gradient = want_hidden || want_weight;
  const auto wide = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto& objective = options.loss.objective;

  // With an objective, slopes are known once all losses are.
  Objective found;
  if (objective) {
    found = objective(pass_over(problem, {}, {}));
    if (want_gradient) found.slopes = found.slopes.to(hidden.options().dtype(wide));
  } else if (want_gradient) {
    found.slopes = at::full({hidden.size(0)}, options.loss.scale, hidden.options().dtype(wide));
  }

  Result result;
  if (want_hidden) result.grad_hidden = at::empty_like(hidden);
  at::Tensor sum_of_weight = options.weight_gradient;
  if (want_weight && (!sum_of_weight.defined() || sum_of_weight.scalar_type() != wide ||
                      !sum_of_weight.is_contiguous())) {
    sum_of_weight = at::empty(weight.sizes(), weight.options().dtype(wide));
  }
  const bool into_sink = want_weight && sum_of_weight.is_same(options.weight_gradient);
  const bool adds = into_sink && autograd::adds_to(sum_of_weight);
  if (options.weight_gradient.defined() && want_weight) {
    options.weight_gradient.unsafeGetTensorImpl()->bump_version();
  }
  if (objective) {
    result.loss = at::scalar_tensor(found.value, hidden.options().dtype(wide));
  }
  if (want_gradient || !objective) {
    const auto losses =
        pass_over(problem, want_gradient ? found.slopes : at::Tensor(),
                  {.of_hidden = result.grad_hidden, .of_weight = sum_of_weight, .adds = adds});
    if (!objective) result.loss = sum_of(losses).mul_(options.loss.scale).to(wide);
  }
  if (!want_weight) return result;
  if (hidden.size(0) == 0 && !adds) sum_of_weight.zero_();
  if (into_sink) return result;
  if (options.weight_gradient.defined()) {
    add_to(options.weight_gradient, sum_of_weight);
  } else {
    result.grad_weight = sum_of_weight.to(problem.weight_dtype);
  }
  return result;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& operand,
                            const at::Tensor& targets, const LinearCrossEntropyOptions& options,
                            bool grad_mode) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const Result result = compute({.hidden = hidden,
                                   .weight = operand,
                                   .targets = targets,
                                   .options = options,
                                   .want_hidden = grad_mode && hidden.requires_grad(),
                                   .want_weight = grad_mode && weight.requires_grad(),
                                   .weight_dtype = weight.scalar_type()});
    ctx->save_for_backward({result.grad_hidden, result.grad_weight});
    ctx->saved_data["already_added"] = options.weight_gradient.defined();
    return result.loss;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto saved = ctx->get_saved_variables();
    variable_list out(6);
    const bool on_host = grads[0].is_cpu(),
               already_added = ctx->saved_data["already_added"].toBool();
    const bool is_one = on_host && grads[0].to(at::kDouble).const_data_ptr<double>()[0] == 1;
    TORCH_CHECK_VALUE(is_one || !on_host || !already_added,
                      "linear_cross_entropy: expected an incoming gradient of 1, got ",
                      grads[0].item<double>(),
                      ", after the weight's gradient was added; set options.loss instead");
    if (already_added && !on_host)
      at::_assert_async(grads[0] == 1);  // the host does not wait for it
    for (int i = 0; i < 2; ++i) {
      if (!saved[i].defined()) continue;
      out[i] = is_one ? saved[i] : saved[i] * grads[0].to(saved[i].scalar_type());
    }
    return out;
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& given_hidden, const at::Tensor& weight,
                                const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options) {
  const auto hidden = autocast(given_hidden);
  const auto operand = autocast_weight(weight);
  TORCH_CHECK_VALUE(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) &&
                        hidden.scalar_type() == operand.scalar_type(),
                    "linear_cross_entropy: expected hidden [N, D] and weight [V, D] of one dtype, "
                    "got ",
                    hidden.sizes(), " ", hidden.scalar_type(), " and ", weight.sizes(), " ",
                    weight.scalar_type());
  TORCH_CHECK_VALUE(
      targets.dim() == 1 && targets.size(0) == hidden.size(0) && targets.scalar_type() == at::kLong,
      "linear_cross_entropy: expected int64 targets [", hidden.size(0), "], got ",
      targets.scalar_type(), " ", targets.sizes());
  TORCH_CHECK_VALUE(
      !options.weight_gradient.defined() || options.weight_gradient.sizes() == weight.sizes(),
      "linear_cross_entropy: expected weight_gradient ", weight.sizes());
  const auto& vocabulary = options.vocabulary;
  check_targets(targets, vocabulary.divided() ? vocabulary.total : weight.size(0),
                options.ignore_index);
  return LinearCrossEntropy::apply(hidden.contiguous(), weight, operand.contiguous(),
                                   targets.contiguous(), options, at::GradMode::is_enabled());
}

}  // namespace tessera::kernels
