#include "tessera/parallel/data/sync_batch_norm.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <vector>

#include "tessera/nn/batch_norm.h"

namespace tessera::parallel {
namespace {

using torch::nn::Module;

struct Found {
  struct InSequential {
    torch::nn::SequentialImpl* sequential;
    size_t index;
    std::string name;  // within the sequential
    nn::BatchNorm replacement;
  };
  std::vector<nn::BatchNormImpl*> ours;
  std::vector<InSequential> torchs;
};

template <typename Impl>
nn::BatchNorm same_tensors(const Impl& module) {
  nn::BatchNorm result(
      nn::BatchNormState{module.weight, module.bias, module.running_mean, module.running_var,
                         module.num_batches_tracked},
      module.options.num_features(),
      nn::BatchNormOptions{.eps = module.options.eps(), .momentum = module.options.momentum()});
  result->train(module.is_training());
  return result;
}

/// A BatchNorm of ours with the tensors of torch's; empty if `module` is none.
nn::BatchNorm replacement_of(const Module& module) {
  if (const auto* in_1d = module.as<torch::nn::BatchNorm1dImpl>()) return same_tensors(*in_1d);
  if (const auto* in_2d = module.as<torch::nn::BatchNorm2dImpl>()) return same_tensors(*in_2d);
  if (const auto* in_3d = module.as<torch::nn::BatchNorm3dImpl>()) return same_tensors(*in_3d);
  return nullptr;
}

/// True if only the sequential that lists `any` holds its module: once to call, once as a child.
bool held_once(const torch::nn::AnyModule& any) { return any.ptr().use_count() == 3; }

void find(Module& module, const std::string& prefix, Found& found) {
  auto* sequential = module.as<torch::nn::SequentialImpl>();
  size_t index = 0;
  for (const auto& name : module.named_children().keys()) {
    const auto child = module.named_children()[name].get();
    const size_t place = index++;
    if (auto* ours = child->as<nn::BatchNormImpl>()) found.ours.push_back(ours);
    if (auto replacement = replacement_of(*child)) {
      TORCH_CHECK_VALUE(
          sequential != nullptr && held_once(*(sequential->begin() + place)), prefix, name,
          ": expected a batch norm that can be replaced, got torch::nn::BatchNorm in a holder of "
          "its own, which calls it directly; use tessera::nn::BatchNorm instead");
      found.torchs.push_back({sequential, place, name, std::move(replacement)});
    }
    find(*child, prefix + name + ".", found);
  }
}

}  // namespace

int64_t convert_sync_batchnorm(Module& model, const mesh::DeviceMesh& mesh) {
  return convert_sync_batchnorm(model,
                                mesh.axis({"dp_replicate", "dp_shard"}, {.channel = "batch_norm"}));
}

int64_t convert_sync_batchnorm(Module& model, const mesh::Axis& axis) {
  Found found;
  if (auto* ours = model.as<nn::BatchNormImpl>()) found.ours.push_back(ours);
  find(model, "", found);
  for (auto& [sequential, index, name, replacement] : found.torchs) {
    *(sequential->begin() + static_cast<std::ptrdiff_t>(index)) = replacement.ptr();
    sequential->replace_module(name, replacement.ptr());
    found.ours.push_back(replacement.get());
  }
  TORCH_CHECK_VALUE(
      !found.ours.empty(), "model ", model.name(),
      ": expected a tessera::nn::BatchNorm in it, or torch's in a Sequential, got none");
  for (auto* batch_norm : found.ours) {
    batch_norm->synchronise([axis](const torch::Tensor& sums) { axis.all_reduce(sums).wait(); });
  }
  return static_cast<int64_t>(found.ours.size());
}

}  // namespace tessera::parallel
