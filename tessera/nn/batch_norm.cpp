#include "tessera/nn/batch_norm.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/held.h"

namespace tessera::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// [C] as [C, 1, ..], to broadcast against `x` [B, C, ..].
Tensor along_channels(const Tensor& values, const Tensor& x) {
  std::vector<int64_t> sizes(x.dim() - 1, 1);
  sizes[0] = values.size(0);
  return values.view(sizes);
}

/// y = (x - mean) / sqrt(var + eps) * weight + bias with the statistics of all ranks, and a
/// backward that accounts for what x contributed to them.
struct Normalise : torch::autograd::Function<Normalise> {
  struct Statistics {
    Tensor mean, var;
    double count, eps;
  };

  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                        const Statistics& statistics, SumOverRanks sum) {
    const auto inverse_std = (statistics.var + statistics.eps).rsqrt();
    context->save_for_backward({x, weight.value_or(Tensor()), statistics.mean, inverse_std});
    context->saved_data["count"] = statistics.count;
    autograd::hold(context, "sum", std::move(sum));
    if (x.numel() == 0) return at::empty_like(x);
    return std::get<0>(at::native_batch_norm(x, weight, bias, statistics.mean, statistics.var,
                                             /*training=*/false, /*momentum=*/0, statistics.eps));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!torch::GradMode::is_enabled(),
                                "synchronised batch norm has no second derivative");
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &mean = saved[2], &inverse_std = saved[3];
    const auto& dy = gradients[0];
    // This rank's sums of dy and of dy x^, in the order of one vector for one collective.
    auto sums = at::zeros({2, mean.size(0)}, mean.options());
    const auto sum_dy = sums[0], sum_dy_x = sums[1];
    if (x.numel() > 0) {
      const auto local =
          at::native_batch_norm_backward(dy, x, weight, {}, {}, mean, inverse_std, /*train=*/true,
                                         /*eps=*/0, /*output_mask=*/{false, true, true});
      sum_dy.copy_(std::get<2>(local));
      sum_dy_x.copy_(std::get<1>(local));
    }
    variable_list result(5);
    if (weight.defined()) {
      result[1] = sum_dy_x.clone();
      result[2] = sum_dy.clone();
    }
    if (!context->needs_input_grad(0)) return result;
    (*autograd::held<SumOverRanks>(context, "sum"))(sums);
    sums /= context->saved_data["count"].toDouble();
    // dx = a (dy - mean(dy) - x^ mean(dy x^)) with a = weight / std
    const auto a = weight.defined() ? weight * inverse_std : inverse_std;
    // which is per channel shift + slope x + a dy: two passes.
    const auto slope = -a * inverse_std * sum_dy_x, shift = -a * sum_dy - slope * mean;
    result[0] = at::addcmul(along_channels(shift, x), x, along_channels(slope, x))
                    .addcmul_(dy, along_channels(a, x));
    return result;
  }
};

/// [count, sum of each channel, sum of squares of each channel] of `x`, fp64. The squares are about
/// zero, so that ranks can add them; the variance is what is left after mean^2 is taken off again.
/// In fp64 that loses (mean / std)^2 * 1e-16, less than rounding x to fp32 has lost already. Each
/// rank's own variance comes from LibTorch's two passes over x.
Tensor local_moments(const Tensor& x) {
  const int64_t channels = x.size(1);
  auto moments = at::zeros({2 * channels + 1}, x.options().dtype(torch::kFloat64));
  if (x.numel() == 0) return moments;
  const double count = static_cast<double>(x.numel() / channels);
  auto [mean, var] = at::batch_norm_update_stats(x, {}, {}, /*momentum=*/0);
  mean = mean.to(torch::kFloat64);
  moments[0] = count;
  moments.narrow(0, 1, channels).copy_(mean * count);
  moments.narrow(0, 1 + channels, channels).copy_((var + mean.square()) * count);
  return moments;
}

BatchNormState make_state(int64_t num_features, const BatchNormOptions& options,
                          const torch::TensorOptions& tensor_options) {
  BatchNormState state;
  if (options.affine) {
    state.weight = torch::empty({num_features}, tensor_options.requires_grad(true));
    state.bias = torch::empty({num_features}, tensor_options.requires_grad(true));
  }
  if (options.track_running_stats) {
    const auto buffer_options = tensor_options.requires_grad(false);
    state.running_mean = torch::empty({num_features}, buffer_options);
    state.running_var = torch::empty({num_features}, buffer_options);
    state.num_batches_tracked = torch::empty({}, buffer_options.dtype(torch::kInt64));
  }
  return state;
}

}  // namespace

BatchNormImpl::BatchNormImpl(int64_t num_features, const BatchNormOptions& options,
                             const torch::TensorOptions& tensor_options)
    : BatchNormImpl(make_state(num_features, options, tensor_options), num_features, options) {
  reset();
}

BatchNormImpl::BatchNormImpl(const BatchNormState& state, int64_t num_features,
                             const BatchNormOptions& options)
    : BatchNormState(state),
      num_features_(num_features),
      eps_(options.eps),
      momentum_(options.momentum) {
  if (weight.defined()) {
    register_parameter("weight", weight, weight.requires_grad());
    register_parameter("bias", bias, bias.requires_grad());
  }
  if (running_mean.defined()) {
    register_buffer("running_mean", running_mean);
    register_buffer("running_var", running_var);
    register_buffer("num_batches_tracked", num_batches_tracked);
  }
}

void BatchNormImpl::reset() {
  const torch::NoGradGuard no_grad;
  if (weight.defined()) {
    weight.fill_(1);
    bias.zero_();
  }
  if (running_mean.defined()) {
    running_mean.zero_();
    running_var.fill_(1);
    num_batches_tracked.zero_();
  }
}

double BatchNormImpl::next_momentum() {
  num_batches_tracked += 1;
  return momentum_ ? *momentum_ : 1 / num_batches_tracked.item<double>();
}

Tensor BatchNormImpl::forward(const Tensor& x) {
  TORCH_CHECK_VALUE(x.dim() >= 2 && x.size(1) == num_features_, name(), ": expected [B, ",
                    num_features_, ", ..], got ", x.sizes());
  if (is_training() && synchronised()) return forward_synchronised(x);
  const bool tracks = running_mean.defined();
  const double momentum = is_training() && tracks ? next_momentum() : 0;
  // LibTorch wants one dtype for all four; a mixed-precision policy leaves buffers alone.
  const auto as_running = [&](const Tensor& parameter) {
    return tracks && parameter.defined() ? parameter.to(running_mean.scalar_type()) : parameter;
  };
  return at::batch_norm(x, as_running(weight), as_running(bias), running_mean, running_var,
                        is_training() || !tracks, momentum, eps_,
                        at::globalContext().userEnabledCuDNN());
}

Tensor BatchNormImpl::forward_synchronised(const Tensor& x) {
  const auto dtype = x.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const auto wide = x.to(dtype);
  const auto moments = local_moments(wide.detach());
  sum_over_ranks_(moments);
  const double count = moments[0].item<double>();
  TORCH_CHECK_VALUE(count > 1, name(), ": expected more than one value per channel over all ranks ",
                    "in training, got ", count);
  const auto mean = moments.narrow(0, 1, num_features_) / count;
  const auto var =
      (moments.narrow(0, 1 + num_features_, num_features_) / count - mean.square()).clamp_min_(0);
  if (running_mean.defined()) update_running(mean, var * (count / (count - 1)));
  const auto widened = [&](const Tensor& parameter) {
    return parameter.defined() ? std::optional(parameter.to(dtype)) : std::nullopt;
  };
  return Normalise::apply(wide, widened(weight), widened(bias),
                          Normalise::Statistics{mean.to(dtype), var.to(dtype), count, eps_},
                          sum_over_ranks_)
      .to(x.scalar_type());
}

void BatchNormImpl::update_running(const Tensor& mean, const Tensor& unbiased_var) {
  const double momentum = next_momentum();
  const auto share = [&](Tensor& running, const Tensor& now) {
    running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
  };
  share(running_mean, mean);
  share(running_var, unbiased_var);
}

}  // namespace tessera::nn
