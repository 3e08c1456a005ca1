// Attention on a GPU, with cuDNN's and FlashAttention's operators made here of plain ones on the CPU: what they are told, and what is made of
// their results.
#include "tessera/kernels/device_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "tessera/kernels/attention.h"
#include "tessera/kernels/documents.h"

namespace tessera::kernels {
namespace {

int64_t flash_calls = 0, cudnn_calls = 0;

/// Which keys a query of one sequence sees: FlashAttention's rule, aligned at the lower right.
struct Sight {
  bool causal;
  int64_t left, right;  ///< -1: without limit
  double scale;
};

/// [H, T, S] of q [T, H, E], k [S, K, E].
at::Tensor weights_of(const at::Tensor& q, const at::Tensor& k, const Sight& sight) {
  const int64_t queries = q.size(0), keys = k.size(0);
  const auto repeated = k.repeat_interleave(q.size(1) / k.size(1), 1);
  auto scores = at::matmul(q.transpose(0, 1), repeated.permute({1, 2, 0})) * sight.scale;
  const auto distance =
      at::arange(keys).unsqueeze(0) - at::arange(queries).unsqueeze(1) - (keys - queries);
  const int64_t right = sight.causal ? 0 : sight.right;
  if (right >= 0) scores = scores.masked_fill(distance > right, -INFINITY);
  if (sight.left >= 0) scores = scores.masked_fill(distance < -sight.left, -INFINITY);
  return scores.softmax(-1);
}

at::Tensor result_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Sight& sight) {
  const auto repeated = v.repeat_interleave(q.size(1) / v.size(1), 1).transpose(0, 1);
  return at::matmul(weights_of(q, k, sight), repeated).transpose(0, 1);
}

/// Gradients of q, k and v.
std::vector<at::Tensor> gradients_of(const at::Tensor& grad, const at::Tensor& q,
                                     const at::Tensor& k, const at::Tensor& v, const Sight& sight) {
  const int64_t copies = q.size(1) / k.size(1);
  const auto weights = weights_of(q, k, sight);
  const auto of_head = [&](const at::Tensor& x) {
    return x.repeat_interleave(q.size(1) / x.size(1), 1).transpose(0, 1);
  };
  const auto of_weights = at::matmul(of_head(grad), of_head(v).transpose(1, 2));
  const auto of_scores =
      weights * (of_weights - (of_weights * weights).sum(-1, true)) * sight.scale;
  const auto shared = [&](const at::Tensor& x) {  // [H, S, E] -> [S, K, E]
    return x.view({k.size(1), copies, k.size(0), x.size(2)}).sum(1).transpose(0, 1);
  };
  return {at::matmul(of_scores, of_head(k)).transpose(0, 1),
          shared(at::matmul(of_scores.transpose(1, 2), of_head(q))),
          shared(at::matmul(weights.transpose(1, 2), of_head(grad)))};
}

/// The parts of a call that are sequences by themselves: of each tensor [B, T, ..] the rows, of [N, ..] what `begins` says.
std::vector<std::vector<at::Tensor>> sequences_of(const std::vector<at::Tensor>& tensors,
                                                  const at::Tensor& begins, int64_t longest) {
  std::vector<std::vector<at::Tensor>> parts;
  if (!begins.defined()) {
    for (int64_t b = 0; b < tensors[0].size(0); ++b) {
      parts.emplace_back();
      for (const auto& x : tensors) parts.back().push_back(x[b]);
      EXPECT_EQ(longest, tensors[0].size(1));
    }
    return parts;
  }
  EXPECT_EQ(begins.scalar_type(), at::kInt);
  const auto* at = begins.const_data_ptr<int>();
  EXPECT_EQ(at[0], 0);
  EXPECT_EQ(at[begins.numel() - 1], tensors[0].size(0));
  int64_t most = 0;
  for (int64_t i = 1; i < begins.numel(); ++i) {
    EXPECT_LT(at[i - 1], at[i]);
    most = std::max<int64_t>(most, at[i] - at[i - 1]);
    parts.emplace_back();
    for (const auto& x : tensors) parts.back().push_back(x.slice(0, at[i - 1], at[i]));
  }
  EXPECT_EQ(longest, most);
  return parts;
}

using Tensors5 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Tensors3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Tensors5 flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const std::optional<at::Tensor>& begins_q,
                       const std::optional<at::Tensor>& begins_k, int64_t longest_q,
                       int64_t longest_k, double dropout, bool causal, bool,
                       std::optional<double> scale, std::optional<int64_t> left,
                       std::optional<int64_t> right, const std::optional<at::Tensor>&,
                       const std::optional<at::Tensor>&) {
  ++flash_calls;
  EXPECT_EQ(dropout, 0);
  EXPECT_EQ(begins_q.has_value(), begins_k.has_value());
  EXPECT_TRUE(begins_q || longest_k == k.size(1));
  const Sight sight{causal, left.value_or(-1), right.value_or(-1), scale.value()};
  std::vector<at::Tensor> outs;
  for (const auto& part : sequences_of({q, k, v}, begins_q.value_or(at::Tensor()), longest_q)) {
    outs.push_back(result_of(part[0], part[1], part[2], sight));
  }
  const auto out = begins_q ? at::cat(outs) : at::stack(outs);
  const auto none = at::zeros({1});
  return {out.contiguous(), none, none, none, none};
}

Tensors3 flash_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, const at::Tensor& out, const at::Tensor&,
                        const at::Tensor& begins_q, const at::Tensor&, int64_t longest_q, int64_t,
                        double, bool causal, const at::Tensor&, const at::Tensor&,
                        std::optional<double> scale, std::optional<int64_t> left,
                        std::optional<int64_t> right) {
  EXPECT_EQ(out.sizes(), q.sizes());
  const Sight sight{causal, left.value_or(-1), right.value_or(-1), scale.value()};
  std::vector<at::Tensor> of_q, of_k, of_v;
  for (const auto& part : sequences_of({q, k, v, grad}, begins_q, longest_q)) {
    const auto gradients = gradients_of(part[3], part[0], part[1], part[2], sight);
    of_q.push_back(gradients[0]), of_k.push_back(gradients[1]), of_v.push_back(gradients[2]);
  }
  const auto joined = [&](const std::vector<at::Tensor>& parts) {
    return (begins_q.defined() ? at::cat(parts) : at::stack(parts)).contiguous();
  };
  return {joined(of_q), joined(of_k), joined(of_v)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
           at::Tensor, at::Tensor>
cudnn_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const std::optional<at::Tensor>& bias, bool with_log_sum_exp, double dropout,
              bool causal, bool, std::optional<double> scale) {
  ++cudnn_calls;
  EXPECT_FALSE(bias);
  EXPECT_TRUE(with_log_sum_exp);
  EXPECT_EQ(dropout, 0);
  const Sight sight{causal, -1, -1, scale.value()};
  std::vector<at::Tensor> outs;
  for (int64_t b = 0; b < q.size(0); ++b) {
    outs.push_back(
        result_of(q[b].transpose(0, 1), k[b].transpose(0, 1), v[b].transpose(0, 1), sight));
  }
  const auto none = at::zeros({1});
  return {at::stack(outs).contiguous().transpose(1, 2), none, none, none, 0, 0, none, none, none};
}

Tensors3 cudnn_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, const at::Tensor&, const at::Tensor&,
                        const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                        const at::Tensor&, int64_t longest_q, int64_t longest_k, double,
                        bool causal, std::optional<double> scale) {
  EXPECT_EQ(longest_q, q.size(2));
  EXPECT_EQ(longest_k, k.size(2));
  const auto [of_q, of_k, of_v] =
      flash_backward(grad.transpose(1, 2), q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                     q.transpose(1, 2), {}, {}, {}, longest_q, longest_k, 0, causal, {}, {}, scale,
                     std::nullopt, std::nullopt);
  return {of_q.transpose(1, 2), of_k.transpose(1, 2), of_v.transpose(1, 2)};
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_flash_attention_forward", flash_forward);
  library.impl("_flash_attention_backward", flash_backward);
  library.impl("_scaled_dot_product_cudnn_attention", cudnn_forward);
  library.impl("_scaled_dot_product_cudnn_attention_backward", cudnn_backward);
}

struct Case {
  int64_t batch = 2, queries = 11, keys = 11, heads = 6, key_heads = 2, dim = 8;
  bool causal = true;
  std::optional<int64_t> window = {};
  std::vector<int64_t> documents = {};  ///< begin and end of each
  bool by_cudnn = false;
};

class DeviceAttention : public ::testing::TestWithParam<Case> {};

TEST_P(DeviceAttention, EqualsTheReference) {
  const auto& c = GetParam();
  at::manual_seed(3);
  const auto make = [&](int64_t tokens, int64_t heads) {
    return at::randn({c.batch, tokens, heads, c.dim}, at::kDouble);
  };
  const std::vector<at::Tensor> values{make(c.queries, c.heads), make(c.keys, c.key_heads),
                                       make(c.keys, c.key_heads)};
  const auto documents =
      c.documents.empty() ? at::Tensor() : at::tensor(c.documents, at::kLong).view({-1, 2});
  auto grad = make(c.queries, c.heads);
  auto in_document = at::ones({c.batch, c.queries, 1, 1}, at::kDouble);
  if (documents.defined()) {
    in_document = (document_indices(documents, c.batch, c.queries) >= 0)
                      .to(at::kDouble)
                      .view(in_document.sizes());
  }
  grad *= in_document;
  const auto results = [&](const auto& function) {
    std::vector<at::Tensor> leaves;
    for (const auto& value : values) leaves.push_back(value.detach().requires_grad_(true));
    const auto out = function(leaves[0], leaves[1], leaves[2]);
    auto all = torch::autograd::grad({out}, leaves, {grad});
    all.push_back(out.detach() * in_document);
    return all;
  };
  const double scale = 0.3;
  flash_calls = cudnn_calls = 0;
  const auto got = results([&](const auto& q, const auto& k, const auto& v) {
    return device_attention(
        q, k, v, {.scale = scale, .causal = c.causal, .window = c.window, .documents = documents});
  });
  EXPECT_EQ(cudnn_calls, c.by_cudnn ? 1 : 0);
  EXPECT_EQ(flash_calls, c.by_cudnn ? 0 : 1);
  const auto want = results([&](const auto& q, const auto& k, const auto& v) {
    return attention_reference(q, k, v, {.causal = c.causal, .window = c.window, .scale = scale},
                               documents);
  });
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), want[i].sizes());
    EXPECT_LT((got[i] - want[i]).abs().max().template item<double>(), 1e-10) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, DeviceAttention,
    ::testing::Values(Case{.by_cudnn = true}, Case{.causal = false, .by_cudnn = true},
                      Case{.queries = 3, .by_cudnn = false}, Case{.dim = 136}, Case{.window = 1},
                      Case{.window = 4}, Case{.queries = 5, .window = 3},
                      // A row in three documents, then one that is full.
                      Case{.documents = {0, 1, 1, 8, 8, 11, 11, 22}},
                      // Padding before, between and behind, and a row of it.
                      Case{.batch = 4, .documents = {2, 5, 7, 9, 11, 20, 35, 44}},
                      Case{.batch = 3, .documents = {0, 7, 30, 33}},
                      Case{.window = 2, .documents = {0, 5, 5, 11, 13, 22}},
                      Case{.causal = false, .documents = {0, 5, 5, 11, 13, 22}}));

// The table of a batch's documents is made once for all of its layers, and anew for the next batch.
TEST(DeviceAttentionTable, TakesTheDocumentsOfItsOwnCall) {
  at::manual_seed(4);
  const auto q = at::randn({1, 6, 2, 8}, at::kDouble), wide = at::randn({2, 3, 2, 8}, at::kDouble);
  const auto one = at::tensor(std::vector<int64_t>{0, 2, 2, 6}, at::kLong).view({-1, 2});
  const auto other = at::tensor(std::vector<int64_t>{0, 3, 3, 6}, at::kLong).view({-1, 2});
  for (const auto& documents : {one, other, one}) {
    const auto got = device_attention(q, q, q, {.scale = 1, .documents = documents});
    EXPECT_TRUE(at::allclose(got, attention_reference(q, q, q, {.scale = 1.0}, documents)));
  }
  EXPECT_TRUE(at::allclose(device_attention(wide, wide, wide, {.scale = 1, .documents = other}),
                           attention_reference(wide, wide, wide, {.scale = 1.0}, other)));
  // The same table, and a row of padding more.
  const auto more = at::randn({3, 3, 2, 8}, at::kDouble);
  EXPECT_TRUE(at::allclose(
      device_attention(more, more, more, {.scale = 1, .documents = other}).slice(0, 0, 2),
      attention_reference(more, more, more, {.scale = 1.0}, other).slice(0, 0, 2)));
}

}  // namespace
}  // namespace tessera::kernels
