#include "tessera/kernels/device_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "tessera/autograd/apply.h"
#include "tessera/autograd/recompute.h"
#include "tessera/kernels/documents.h"
#include "tessera/kernels/to_device.h"

namespace tessera::kernels {
namespace {

/// Where documents, and what is between them, begin in the flat [B T], as the kernels take it.
struct Sequences {
  at::Tensor begins;  ///< int32 [N + 1] on the device
  int64_t longest = 0;
};

Sequences sequences_of(const at::Tensor& documents, const at::Tensor& q) {
  const int64_t batch = q.size(0), seq_len = q.size(1);
  std::vector<int> begins{0};
  const auto go_to = [&](int64_t token) {
    if (token > begins.back()) begins.push_back(static_cast<int>(token));
  };
  const auto* bounds = documents.const_data_ptr<int64_t>();
  int64_t next_row = seq_len;
  const auto rows_up_to = [&](int64_t token) {
    for (; next_row <= token; next_row += seq_len) go_to(next_row);
  };
  for (int64_t i = 0; i < documents.numel(); ++i) {
    rows_up_to(bounds[i]);
    go_to(bounds[i]);
  }
  rows_up_to(batch * seq_len);
  int longest = 0;
  for (size_t i = 1; i < begins.size(); ++i) {
    longest = std::max(longest, begins[i] - begins[i - 1]);
  }
  constexpr size_t kMost = 65535;  // of a grid's second dimension
  TORCH_CHECK_VALUE(begins.size() - 1 <= kMost, "attention: expected at most ", kMost,
                    " documents and stretches between them in a batch on a GPU, got ",
                    begins.size() - 1, "; take fewer rows at a time");
  return {.begins = to_device(at::tensor(begins, at::kInt), q.device()), .longest = longest};
}

/// The same, made once for all layers of a micro-batch.
Sequences known_sequences(const at::Tensor& documents, const at::Tensor& q) {
  static thread_local struct {
    at::Tensor documents;
    at::Device device = at::kCPU;
    int64_t batch = 0, seq_len = 0;
    Sequences sequences;
  } last;
  if (!last.documents.is_same(documents) || last.device != q.device() || last.batch != q.size(0) ||
      last.seq_len != q.size(1)) {
    last = {documents, q.device(), q.size(0), q.size(1), sequences_of(documents, q)};
  }
  return last.sequences;
}

struct Call {
  DeviceAttentionRule rule;
  bool by_cudnn;
};

/// Hopper's and Blackwell's matrix units are cuDNN's alone; it takes no windows here, and no single key.
bool is_for_cudnn(const at::Tensor& q, const at::Tensor& k, const DeviceAttentionRule& rule) {
  return !rule.window && !rule.documents.defined() && q.size(1) == k.size(1) && k.size(1) > 1 &&
         q.size(3) <= 128;
}

/// What FlashAttention is told beside the tensors.
struct Flash {
  at::Tensor begins;  ///< of documents; undefined: each row is one
  int64_t longest_q, longest_k;
  int64_t left,
      right;  ///< keys that a query sees before and after it; -1: all that its rule leaves

  Flash(const DeviceAttentionRule& rule, const at::Tensor& q, const at::Tensor& k)
      : longest_q(q.size(1)),
        longest_k(k.size(1)),
        left(rule.window.value_or(0) - 1),
        right(rule.window ? 0 : -1) {
    if (!rule.documents.defined()) return;
    const auto sequences = known_sequences(rule.documents, q);
    begins = sequences.begins, longest_q = longest_k = sequences.longest;
  }

  /// [B, T, ..], flat where there are documents.
  at::Tensor rows(const at::Tensor& x) const { return begins.defined() ? x.flatten(0, 1) : x; }
};

/// Result and log-sum-exp, and two that the backward takes.
std::vector<at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const Call& call) {
  const auto& rule = call.rule;
  if (call.by_cudnn) {
    auto [out, log_sum_exp, cum_q, cum_k, max_q, max_k, seed, offset, mask] =
        at::_scaled_dot_product_cudnn_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), /*attn_bias=*/{},
            /*compute_log_sumexp=*/true, /*dropout_p=*/0, rule.causal,
            /*return_debug_mask=*/false, rule.scale);
    return {out.transpose(1, 2), log_sum_exp, seed, offset};
  }
  const Flash flash(rule, q, k);
  const auto begins = flash.begins.defined() ? std::optional(flash.begins) : std::nullopt;
  auto [out, log_sum_exp, state, unused, mask] = at::_flash_attention_forward(
      flash.rows(q), flash.rows(k), flash.rows(v), begins, begins, flash.longest_q, flash.longest_k,
      /*dropout_p=*/0, rule.causal, /*return_debug_mask=*/false, rule.scale, flash.left,
      flash.right);
  return {out.view(q.sizes()), log_sum_exp, state, unused};
}

torch::autograd::variable_list backward(const at::Tensor& given_grad,
                                        const torch::autograd::variable_list& saved,
                                        const Call& call) {
  const auto& rule = call.rule;
  const auto &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &log_sum_exp = saved[4];
  const auto grad = given_grad.contiguous();
  if (call.by_cudnn) {
    auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_cudnn_attention_backward(
        grad.transpose(1, 2), q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
        out.transpose(1, 2), log_sum_exp, saved[5], saved[6], /*attn_bias=*/{}, /*cum_seq_q=*/{},
        /*cum_seq_k=*/{}, q.size(1), k.size(1), /*dropout_p=*/0, rule.causal, rule.scale);
    return {grad_q.transpose(1, 2), grad_k.transpose(1, 2), grad_v.transpose(1, 2)};
  }
  const Flash flash(rule, q, k);
  auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
      flash.rows(grad), flash.rows(q), flash.rows(k), flash.rows(v), flash.rows(out), log_sum_exp,
      flash.begins, flash.begins, flash.longest_q, flash.longest_k, /*dropout_p=*/0, rule.causal,
      saved[5], saved[6], rule.scale, flash.left, flash.right);
  return {grad_q.view(q.sizes()), grad_k.view(k.sizes()), grad_v.view(v.sizes())};
}

class DeviceAttention : public torch::autograd::Function<DeviceAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, const Call& call) {
    const auto results = autograd::compute_once(autograd::Operator::attention, 4,
                                                [&] { return kernels::forward(q, k, v, call); });
    context->save_for_backward(
        {q, k, v, results[0], results[1], results[2], results[3], call.rule.documents});
    context->saved_data["scale"] = call.rule.scale;
    context->saved_data["causal"] = call.rule.causal;
    context->saved_data["window"] = call.rule.window;
    context->saved_data["by_cudnn"] = call.by_cudnn;
    return results[0];
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    check_first_derivative();
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const Call call{.rule = {.scale = data["scale"].toDouble(),
                             .causal = data["causal"].toBool(),
                             .window = data["window"].toOptional<int64_t>(),
                             .documents = saved[7]},
                    .by_cudnn = data["by_cudnn"].toBool()};
    auto gradients = kernels::backward(grads[0], saved, call);
    gradients.emplace_back();
    return gradients;
  }
};

}  // namespace

void check_first_derivative() {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "attention: the fused kernel is not twice differentiable; use float64 or "
              "attention_reference");
}

bool takes_device_attention(const at::Tensor& q, bool has_softcap_or_sinks) {
  return q.is_cuda() && at::isReducedFloatingType(q.scalar_type()) && q.numel() > 0 &&
         q.size(3) % 8 == 0 && q.size(3) <= 256 && !has_softcap_or_sinks;
}

at::Tensor device_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const DeviceAttentionRule& rule) {
  return autograd::apply<DeviceAttention>(q, k, v,
                                          Call{.rule = rule, .by_cudnn = is_for_cudnn(q, k, rule)});
}

}  // namespace tessera::kernels
