#include "tessera/kernels/attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "tessera/autograd/apply.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/autograd/recompute.h"
#include "tessera/kernels/autocast.h"
#include "tessera/kernels/cpu/attention_kernel.h"
#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/cpu/parallel.h"
#include "tessera/kernels/device_attention.h"
#include "tessera/kernels/documents.h"
#include "tessera/kernels/observed.h"
#include "tessera/kernels/optional_tensor.h"
#include "tessera/kernels/to_device.h"

namespace tessera::kernels {
namespace {

const AttentionTable& table() {
#if defined(__x86_64__)
  static constexpr const AttentionTable* kTables[] = {
      &generic::attention_table, &avx2::attention_table, &avx512::attention_table,
      &avx512_bf16::attention_table, &amx_bf16::attention_table};
#else
  static constexpr const AttentionTable* kTables[] = {&generic::attention_table};
#endif
  return table_in_use(kTables);
}

double scale_of(const at::Tensor& q, const AttentionOptions& options) {
  return options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
}

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
           const AttentionOptions& options, const at::Tensor& documents, const at::Tensor& sinks) {
  TORCH_CHECK_VALUE(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes(),
                    "attention: expected q [B, T, H, E], k and v [B, S, K, E], got ", q.sizes(),
                    ", ", k.sizes(), " and ", v.sizes());
  TORCH_CHECK_VALUE(q.size(0) == k.size(0) && q.size(3) == k.size(3) && k.size(2) > 0 &&
                        k.size(1) > 0 && q.size(2) % k.size(2) == 0,
                    "attention: expected equal B and E, H a multiple of K and S > 0, got q ",
                    q.sizes(), " and k ", k.sizes());
  TORCH_CHECK_VALUE(q.scalar_type() == k.scalar_type() && k.scalar_type() == v.scalar_type(),
                    "attention: expected one dtype, got ", q.scalar_type(), ", ", k.scalar_type(),
                    " and ", v.scalar_type());
  TORCH_CHECK_VALUE(!options.causal || q.size(1) <= k.size(1),
                    "attention: expected at most as many queries as keys when causal, got ",
                    q.size(1), " and ", k.size(1), "; set causal = false");
  TORCH_CHECK_VALUE(!options.window || (options.causal && *options.window >= 1),
                    "attention: expected a window >= 1 and causal, got ",
                    options.window.value_or(0), options.causal ? "" : " and not causal");
  TORCH_CHECK_VALUE(!options.softcap || *options.softcap > 0,
                    "attention: expected a softcap > 0, got ", options.softcap.value_or(0));
  TORCH_CHECK_VALUE(!sinks.defined() || (sinks.dim() == 1 && sinks.size(0) == q.size(2)),
                    "attention: expected a sink for each of ", q.size(2), " heads, got ",
                    sinks.sizes());
  TORCH_CHECK_VALUE(!documents.defined() || q.size(1) == k.size(1),
                    "attention: expected as many queries as keys where there are documents, got ",
                    q.size(1), " and ", k.size(1));
  check_documents(documents, q.size(0), q.size(1));
}

/// The window that hides a key from some query: with more keys than there are, none does.
std::optional<int64_t> window_of(const at::Tensor& k, const AttentionOptions& options) {
  return options.window && *options.window < k.size(1) ? options.window : std::nullopt;
}

/// [T, S], or [B, 1, T, S] with documents: true where a query sees a key. What is in no document sees itself.
at::Tensor visible_keys(const at::Tensor& q, const at::Tensor& k, const AttentionOptions& options,
                        const at::Tensor& documents) {
  const int64_t queries = q.size(1), keys = k.size(1), shift = keys - queries;
  auto visible = at::ones({queries, keys}, q.options().dtype(at::kBool));
  if (options.causal) visible = visible.tril(shift);
  if (const auto window = window_of(k, options)) visible = visible.triu(shift - *window + 1);
  if (!documents.defined()) return visible;
  const auto index = to_device(document_indices(documents, q.size(0), queries), q.device());
  const auto same = index.unsqueeze(2) == index.unsqueeze(1);
  return (visible & same & (index >= 0).unsqueeze(1))
      .logical_or_(at::eye(queries, visible.options()))
      .unsqueeze(1);
}

/// Zero where there is no document.
at::Tensor within_documents(const at::Tensor& out, const at::Tensor& documents) {
  if (cover_all(documents, out.size(0) * out.size(1))) return out;
  const auto index = document_indices(documents, out.size(0), out.size(1));
  const auto outside = to_device(index < 0, out.device());
  return out.masked_fill(outside.unsqueeze(2).unsqueeze(3), 0);
}

at::Tensor with_contiguous_rows(const at::Tensor& x) {
  return x.stride(3) == 1 ? x : x.contiguous();
}

AttentionView view_of(const at::Tensor& x) {
  return {.data = x.data_ptr(),
          .batch_stride = x.stride(0),
          .token_stride = x.stride(1),
          .head_stride = x.stride(2)};
}

/// What the kernel needs of the options.
struct Rule {
  double scale;
  bool causal;
  int64_t window;    ///< more than any query sees, if there is none
  double softcap;    ///< 0: none
  at::Tensor sinks;  ///< float32 [H], or undefined
  at::Tensor documents;
};

AttentionProblem problem_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& out, const at::Tensor& log_sum_exp,
                            const Rule& rule) {
  return {.num_queries = q.size(1),
          .num_keys = k.size(1),
          .heads = q.size(2),
          .key_heads = k.size(2),
          .head_dim = q.size(3),
          .scale = static_cast<float>(rule.scale),
          .softcap = static_cast<float>(rule.softcap),
          .causal = rule.causal,
          .window = rule.window,
          .bfloat16 = q.scalar_type() == at::kBFloat16,
          .sinks = rule.sinks.defined() ? rule.sinks.const_data_ptr<float>() : nullptr,
          .q = view_of(q),
          .k = view_of(k),
          .v = view_of(v),
          .out = view_of(out),
          .log_sum_exp = log_sum_exp.data_ptr<float>()};
}

AttentionView from_token(AttentionView view, int64_t row, int64_t token, bool bfloat16) {
  if (view.data == nullptr) return view;
  const int64_t elements = row * view.batch_stride + token * view.token_stride;
  view.data = static_cast<char*>(view.data) + elements * (bfloat16 ? 2 : 4);
  return view;
}

/// The problem of one row, or of one document, as if there were no other.
AttentionProblem part_of(const AttentionProblem& all, const Document& queries) {
  auto part = all;
  for (auto view : {&AttentionProblem::q, &AttentionProblem::k, &AttentionProblem::v,
                    &AttentionProblem::out, &AttentionProblem::grad_out, &AttentionProblem::grad_q,
                    &AttentionProblem::grad_k, &AttentionProblem::grad_v}) {
    part.*view = from_token(all.*view, queries.row, queries.begin, all.bfloat16);
  }
  part.log_sum_exp += (queries.row * all.num_queries + queries.begin) * all.heads;
  part.num_keys += queries.size() - all.num_queries;  // as many as queries, or those of a whole row
  part.num_queries = queries.size();
  return part;
}

using Kernel = void (*)(const AttentionProblem&, int64_t begin, int64_t end, float* workspace);

/// Runs `kernel` for `heads` of each part. Each worker has a buffer of its own and a stretch of
/// heads that takes as long as another's.
void run_parallel(const AttentionProblem& all, const std::vector<Document>& parts, int64_t heads,
                  int64_t (*workspace)(const AttentionProblem&), Kernel kernel) {
  std::vector<int64_t> ends;  // what it takes to the end of each part
  for (const auto& part : parts) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + part.size() * part.size());
  }
  if (ends.empty()) return;
  const auto longest = std::ranges::max(parts, {}, &Document::size);
  const int64_t buffer_size = workspace(part_of(all, longest));
  const int64_t workers = std::min<int64_t>(at::get_num_threads(), std::ssize(parts) * heads);
  parallel_for(0, workers, 1, [&](int64_t first, int64_t last) {
    const auto buffer = at::empty({buffer_size}, at::kFloat);  // LibTorch aligns to 64 bytes
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t before = i == 0 ? 0 : ends[i - 1], cost = ends[i] - before;
      // The heads that begin in this worker's share of it all.
      const auto head_at = [&](int64_t worker) {
        const int64_t share = ends.back() * heads * worker / workers - before * heads;
        return std::clamp<int64_t>((share + cost - 1) / cost, 0, heads);
      };
      const int64_t begin = head_at(first), end = head_at(last);
      if (begin < end) kernel(part_of(all, parts[i]), begin, end, buffer.data_ptr<float>());
    }
  });
}

/// Memory for what each token of a document gets; zeros where a token is in none.
at::Tensor results_like(const at::Tensor& x, const at::Tensor& documents) {
  return cover_all(documents, x.size(0) * x.size(1)) ? at::empty(x.sizes(), x.options())
                                                     : at::zeros(x.sizes(), x.options());
}

/// float16 is computed in float32.
at::Tensor as_computed(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
}

/// The result and the log-sum-exp.
std::vector<at::Tensor> forward(const at::Tensor& given_q, const at::Tensor& given_k,
                                const at::Tensor& given_v, const Rule& rule) {
  const auto q = as_computed(given_q), k = as_computed(given_k), v = as_computed(given_v);
  auto out = results_like(q, rule.documents);
  auto log_sum_exp = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
  const auto problem = problem_of(q, k, v, out, log_sum_exp, rule);
  const Observed run("tessera::attention", {q, k, v, out, log_sum_exp});
  run_parallel(problem, documents_in(rule.documents, q.size(0), q.size(1)), q.size(2),
               table().forward_workspace, table().forward);
  return {out.to(given_q.scalar_type()), log_sum_exp};
}

at::Tensor as_kernels_take(const at::Tensor& sinks) {
  return sinks.detach().to(at::kFloat).contiguous();
}

/// Each head's sum over queries of grad_out * out times the weight of its sink, negative: [H]. Summed
/// query by query: the same bits for any number of threads.
at::Tensor gradient_of_sinks(const at::Tensor& grad_out, const at::Tensor& out,
                             const at::Tensor& log_sum_exp, const Rule& rule) {
  auto result = at::zeros_like(rule.sinks);
  const int64_t heads = out.size(2), dim = out.size(3);
  const auto parts = documents_in(rule.documents, out.size(0), out.size(1));
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, out.scalar_type(), "sinks", [&] {
    const auto of_head = [&](int64_t head) {
      double sum = 0;
      for (const auto& part : parts) {
        const auto* sums = log_sum_exp.const_data_ptr<float>() +
                           (part.row * out.size(1) + part.begin) * heads + head * part.size();
        for (int64_t t = 0; t < part.size(); ++t) {
          const auto* ours = out.const_data_ptr<scalar_t>() + part.row * out.stride(0) +
                             (part.begin + t) * out.stride(1) + head * out.stride(2);
          const auto* theirs = grad_out.const_data_ptr<scalar_t>() + part.row * grad_out.stride(0) +
                               (part.begin + t) * grad_out.stride(1) + head * grad_out.stride(2);
          float delta = 0;
          for (int64_t d = 0; d < dim; ++d) {
            delta += static_cast<float>(ours[d]) * static_cast<float>(theirs[d]);
          }
          sum -= delta * std::exp(rule.sinks.const_data_ptr<float>()[head] - sums[t]);
        }
      }
      result.data_ptr<float>()[head] = static_cast<float>(sum);
    };
    parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) of_head(head);
    });
  });
  return result;
}

class FusedAttention : public torch::autograd::Function<FusedAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, at::TensorList sinks,
                            Rule rule) {
    if (!sinks.empty()) rule.sinks = as_kernels_take(sinks[0]);
    const auto results = autograd::compute_once(autograd::Operator::attention, 2,
                                                [&] { return kernels::forward(q, k, v, rule); });
    const auto &out = results[0], &log_sum_exp = results[1];
    context->save_for_backward(
        {q, k, v, out, log_sum_exp, rule.documents, sinks.empty() ? at::Tensor() : sinks[0]});
    context->saved_data["scale"] = rule.scale;
    context->saved_data["causal"] = rule.causal;
    context->saved_data["window"] = rule.window;
    context->saved_data["softcap"] = rule.softcap;
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    check_first_derivative();
    const auto saved = context->get_saved_variables();
    const auto dtype = saved[0].scalar_type();
    const auto q = as_computed(saved[0]), k = as_computed(saved[1]), v = as_computed(saved[2]),
               out = as_computed(saved[3]);
    const auto grad_out = with_contiguous_rows(as_computed(grads[0].to(dtype)));
    const auto& documents = saved[5];
    auto grad_q = results_like(q, documents);
    auto grad_k = results_like(k, documents);
    auto grad_v = results_like(v, documents);
    const auto& sinks = saved[6];
    const Rule rule{context->saved_data["scale"].toDouble(),
                    context->saved_data["causal"].toBool(),
                    context->saved_data["window"].toInt(),
                    context->saved_data["softcap"].toDouble(),
                    sinks.defined() ? as_kernels_take(sinks) : at::Tensor(),
                    documents};
    auto problem = problem_of(q, k, v, out, saved[4], rule);
    problem.grad_out = view_of(grad_out);
    problem.grad_q = view_of(grad_q);
    problem.grad_k = view_of(grad_k);
    problem.grad_v = view_of(grad_v);
    const Observed run("tessera::attention_backward",
                       {q, k, v, out, saved[4], grad_out, grad_q, grad_k, grad_v});
    run_parallel(problem, documents_in(documents, q.size(0), q.size(1)), k.size(2),
                 table().backward_workspace, table().backward);
    at::Tensor grad_sinks;
    if (sinks.defined() && sinks.requires_grad()) {
      grad_sinks = autograd::hand_over(autograd::gradient_sink(sinks),
                                       gradient_of_sinks(grad_out, out, saved[4], rule),
                                       sinks.scalar_type());
    }
    torch::autograd::variable_list gradients{grad_q.to(dtype), grad_k.to(dtype), grad_v.to(dtype)};
    if (sinks.defined()) gradients.push_back(grad_sinks);
    gradients.emplace_back();
    return gradients;
  }
};

bool has_kernel(const at::Tensor& q) {
  return q.is_cpu() && q.numel() > 0 &&
         (q.scalar_type() == at::kFloat || at::isReducedFloatingType(q.scalar_type()));
}

}  // namespace

at::Tensor attention(const at::Tensor& given_q, const at::Tensor& given_k,
                     const at::Tensor& given_v, const AttentionOptions& options,
                     const at::Tensor& documents, const at::Tensor& sinks) {
  const auto q = autocast(given_q), k = autocast(given_k), v = autocast(given_v);
  check(q, k, v, options, documents, sinks);
  if (q.is_meta()) return at::empty(q.sizes(), q.options());
  const double scale = scale_of(q, options);
  const auto window = window_of(k, options);
  if (has_kernel(q)) {
    return autograd::apply<FusedAttention>(with_contiguous_rows(q), with_contiguous_rows(k),
                                           with_contiguous_rows(v), list_of(sinks),
                                           Rule{.scale = scale,
                                                .causal = options.causal,
                                                .window = window.value_or(q.size(1) + k.size(1)),
                                                .softcap = options.softcap.value_or(0),
                                                .sinks = {},
                                                .documents = documents});
  }
  if (takes_device_attention(q, options.softcap || sinks.defined())) {
    const auto out = device_attention(
        with_contiguous_rows(q), with_contiguous_rows(k), with_contiguous_rows(v),
        {.scale = scale, .causal = options.causal, .window = window, .documents = documents});
    return within_documents(out, documents);
  }
  // Where several operators compute it, their results are no checkpointing's; but here it was.
  autograd::compute_once(autograd::Operator::attention, 0,
                         [] { return std::vector<at::Tensor>(); });
  if (options.softcap || sinks.defined()) {
    return attention_reference(q, k, v, options, documents, sinks);
  }
  const bool masked = window || documents.defined() || (options.causal && q.size(1) != k.size(1));
  const auto mask = masked ? std::optional(visible_keys(q, k, options, documents)) : std::nullopt;
  const auto out = at::scaled_dot_product_attention(
      q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, 0.0, options.causal && !masked,
      scale, q.size(2) != k.size(2));
  return within_documents(out.transpose(1, 2), documents).contiguous();
}

at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionOptions& options, const at::Tensor& documents,
                               const at::Tensor& sinks) {
  check(q, k, v, options, documents, sinks);
  const int64_t group = q.size(2) / k.size(2);
  const auto queries = q.transpose(1, 2);  // [B, H, T, E]
  const auto keys = k.transpose(1, 2).repeat_interleave(group, 1);
  const auto values = v.transpose(1, 2).repeat_interleave(group, 1);
  auto scores = queries.matmul(keys.transpose(2, 3)) * scale_of(q, options);
  if (options.softcap) scores = scores.div(*options.softcap).tanh() * *options.softcap;
  if (options.causal || documents.defined()) {
    scores = scores.masked_fill(visible_keys(q, k, options, documents).logical_not(), -INFINITY);
  }
  if (sinks.defined()) {
    const auto of_heads = sinks.to(scores.scalar_type()).view({1, -1, 1, 1});
    scores = at::cat({scores, of_heads.expand({scores.size(0), -1, scores.size(2), 1})}, -1);
  }
  const auto weights = scores.softmax(-1).narrow(-1, 0, k.size(1));
  return within_documents(weights.matmul(values).transpose(1, 2), documents).contiguous();
}

}  // namespace tessera::kernels
