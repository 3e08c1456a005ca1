#include "tessera/kernels/router.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/apply.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/autograd/held.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/cpu/parallel.h"
#include "tessera/kernels/optional_tensor.h"
#include "tessera/kernels/random_bits.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor in_float(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

constexpr double kHalfOfBits = 0x1p31;

/// The numbers that x is multiplied by, float32, on another device than the CPU.
at::Tensor factors_of(const at::Tensor& x, const Jitter& jitter) {
  const auto centred = random_bits_like(x, jitter.key) - static_cast<int64_t>(kHalfOfBits);
  return centred.to(at::kFloat).mul_(jitter.eps / kHalfOfBits).add_(1);
}

/// x in float32, times what is drawn; x itself may be what comes back if nothing is.
at::Tensor jittered(const at::Tensor& x, const Jitter& jitter) {
  auto from = in_float(x);
  if (jitter.eps == 0) return from;
  if (!x.is_cpu()) return from * factors_of(x, jitter);
  auto result = from.is_same(x) ? at::empty_like(from) : from;
  const auto* source = from.const_data_ptr<float>();
  auto* to = result.data_ptr<float>();
  const auto key = random_key(jitter.key);
  const auto scale = static_cast<float>(jitter.eps / kHalfOfBits);
  constexpr int64_t kNumbersOfATask = 1 << 14;
  parallel_for(0, x.numel(), kNumbersOfATask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto bits = random_bits_at(key, jitter.key.first_position + i);
      const auto centred = static_cast<float>(static_cast<int32_t>(bits ^ 0x80000000u));
      to[i] = source[i] * (1 + scale * centred);
    }
  });
  return result;
}

struct RouterLogits : torch::autograd::Function<RouterLogits> {
  /// `bias`: one or none.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            at::TensorList bias, const Jitter& jitter) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward(
        {weight.requires_grad() ? x : at::Tensor(), weight, bias.empty() ? at::Tensor() : bias[0]});
    ctx->saved_data["type"] = x.scalar_type();
    autograd::hold(ctx, "jitter", jitter);
    auto logits =
        multiply_into({}, jittered(x, jitter), in_float(weight).t(), x.options().dtype(at::kFloat));
    return bias.empty() ? logits : logits.add_(in_float(bias[0]));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &bias = saved[2];
    // Outside the guard: .grad() is autograd's.
    const auto sink = autograd::gradient_sink(weight);
    const auto bias_sink = bias.defined() ? autograd::gradient_sink(bias) : bias;
    const auto& jitter = *autograd::held<Jitter>(ctx, "jitter");
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto grad = grads[0].contiguous();
    variable_list out(bias.defined() ? 4 : 3);
    if (ctx->needs_input_grad(0)) {
      const auto of_product = multiply_into({}, grad, in_float(weight), grad.options());
      out[0] = jittered(of_product, jitter).to(ctx->saved_data["type"].toScalarType());
    }
    if (ctx->needs_input_grad(1)) {
      const auto product = multiply_into({}, grad.t(), jittered(x, jitter), grad.options());
      out[1] = autograd::hand_over(sink, product, weight.scalar_type());
    }
    if (bias.defined() && bias.requires_grad()) {
      out[2] = autograd::hand_over(bias_sink, grad.sum(0), bias.scalar_type());
    }
    return out;
  }
};

}  // namespace

at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const Jitter& jitter) {
  TORCH_CHECK_VALUE(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1),
                    "router_logits: expected x [N, D] and weight [E, D], got ", x.sizes(), " and ",
                    weight.sizes());
  TORCH_CHECK_VALUE(jitter.eps >= 0 && jitter.eps < 1,
                    "router_logits: expected a jitter of at least 0 and below 1, got ", jitter.eps);
  return autograd::apply<RouterLogits>(x, weight, list_of(bias), jitter);
}

}  // namespace tessera::kernels
