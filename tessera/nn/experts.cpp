#include "tessera/nn/experts.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <vector>

#include "tessera/kernels/expert_rows.h"
#include "tessera/kernels/grouped_linear.h"

namespace tessera::nn {

torch::Tensor dispatch_here(const torch::Tensor& x, const Routing& routing, int64_t num_experts,
                            const ExpertProducts& products,
                            const std::function<void()>& meanwhile) {
  const auto order = kernels::order_by_expert(routing.experts, num_experts, routing.some_dropped);
  const auto results = products(kernels::gather_rows(x, order), order.counts);
  meanwhile();
  return kernels::combine_rows(results, routing.weights, order);
}

ExpertsImpl::ExpertsImpl(const ExpertsOptions& options, const torch::TensorOptions& tensors)
    : options_(options) {
  for (int64_t e = 0; e < options.num_experts; ++e) {
    const Expert expert{Linear(options.dim, options.ffn_dim, options.with_bias, tensors),
                        Linear(options.dim, options.ffn_dim, options.with_bias, tensors),
                        Linear(options.ffn_dim, options.dim, options.with_bias, tensors)};
    auto module = register_module(std::to_string(e), std::make_shared<torch::nn::Module>());
    module->register_module(options.names.gate, expert.gate);
    module->register_module(options.names.up, expert.up);
    module->register_module(options.names.down, expert.down);
    here_.emplace(e, expert);
  }
}

void ExpertsImpl::keep(int64_t begin, int64_t end) {
  TORCH_CHECK_VALUE(0 <= begin && begin < end && end <= num_experts(),
                    "Experts: expected a part of ", num_experts(), " experts to keep, got [", begin,
                    ", ", end, ")");
  std::erase_if(here_, [&](const auto& expert) {
    const bool leaves = expert.first < begin || expert.first >= end;
    if (leaves) unregister_module(std::to_string(expert.first));
    return leaves;
  });
}

namespace {

/// The same matrix of every expert here.
struct Matrices {
  kernels::GroupedMatrices groups;
  double bias_share = 1;
  bool dense = true;  ///< nothing but products by weights, in their dtype

  void add(const Linear& layer) {
    groups.weights.push_back(layer->weight);
    if (layer->bias.defined()) groups.biases.push_back(layer->bias);
    bias_share = layer->bias_share;
    dense &= layer->kept()->is_dense() && layer->products == nullptr;
  }
};

}  // namespace

torch::Tensor ExpertsImpl::products(const torch::Tensor& rows, const torch::Tensor& counts) {
  Matrices gate, up, down;
  for (const auto& [number, expert] : here_) {
    gate.add(expert.gate), up.add(expert.up), down.add(expert.down);
  }
  if (gate.dense && up.dense && down.dense) {
    const auto inside = kernels::grouped_linears(rows, {gate.groups, up.groups}, counts);
    return kernels::grouped_linear(options_.gated(inside[0], inside[1]), down.groups.weights,
                                   counts, down.groups.biases, down.bias_share);
  }
  const auto here = counts.cpu();
  const auto parts =
      rows.split_with_sizes({here.const_data_ptr<int64_t>(), static_cast<size_t>(here.numel())});
  std::vector<torch::Tensor> results;
  for (auto& [number, expert] : here_) {
    const auto& part = parts[results.size()];
    results.push_back(expert.down(options_.gated(expert.gate(part), expert.up(part))));
  }
  return at::cat(results);
}

torch::Tensor ExpertsImpl::forward(const torch::Tensor& x, const Routing& routing) {
  return forward(x, routing, [](const torch::Tensor&) { return torch::Tensor(); }).first;
}

std::pair<torch::Tensor, torch::Tensor> ExpertsImpl::forward(
    const torch::Tensor& x, const Routing& routing,
    const std::function<torch::Tensor(const torch::Tensor& x)>& beside) {
  torch::Tensor other;
  const auto result = dispatch(
      x.reshape({-1, x.size(-1)}), routing, num_experts(),
      [this](const torch::Tensor& rows, const torch::Tensor& counts) {
        return products(rows, counts);
      },
      [&] { other = beside(x); });
  return {result.view(x.sizes()), other};
}

}  // namespace tessera::nn
