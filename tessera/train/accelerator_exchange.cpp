// What the processes of an Accelerator send each other beside gradients.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tessera/train/accelerator_core.h"

namespace tessera {

torch::Tensor AcceleratorCore::in_step_with_rank_0(const std::function<void()>& work,
                                                   const torch::Tensor& replay) const {
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto state = [&] {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  };
  const auto set_state = [&](const torch::Tensor& value) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(value);
  };
  const auto own = state();
  auto common = (replay.defined() ? replay : own).clone();
  axis_.broadcast(common, 0).wait();
  set_state(common);
  work();
  if (axis_.rank() != 0 || replay.defined()) set_state(own);
  return common;
}

void AcceleratorCore::broadcast(std::vector<torch::Tensor*> tensors) const {
  auto shapes = nlohmann::json::array();
  if (axis_.rank() == 0) {
    for (const auto* tensor : tensors) {
      shapes.push_back(
          {{"dtype", static_cast<int>(tensor->scalar_type())}, {"sizes", tensor->sizes().vec()}});
    }
  }
  shapes = nlohmann::json::parse(axis_.all_gather_bytes(shapes.dump())[0]);
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& tensor = *tensors[i];
    if (axis_.rank() == 0) {
      tensor = tensor.contiguous();
    } else {
      tensor = at::empty(shapes[i]["sizes"].get<std::vector<int64_t>>(),
                         static_cast<torch::Dtype>(shapes[i]["dtype"].get<int>()));
    }
    axis_.broadcast(tensor, 0).wait();
  }
}

torch::Tensor AcceleratorCore::gather(const torch::Tensor& tensor) const {
  if (axis_.size() == 1) return tensor;
  auto own = (tensor.dim() == 0 ? tensor.reshape({1}) : tensor).detach().contiguous();
  std::vector<torch::Tensor> parts;
  const auto texts = axis_.all_gather_bytes(nlohmann::json(own.sizes().vec()).dump());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto sizes = nlohmann::json::parse(texts[rank]).get<std::vector<int64_t>>();
    TORCH_CHECK_VALUE(at::IntArrayRef(sizes).slice(1) == own.sizes().slice(1),
                      "gather: expected tensors that differ in their first dimension at most, got ",
                      texts[rank], " on rank ", rank, " and ", own.sizes(), " on rank ",
                      axis_.rank(), "; pad_across_processes makes them equal");
    parts.push_back(at::empty(sizes, own.options()));
  }
  axis_.all_gather_uneven(parts, own).wait();
  return at::cat(parts);
}

torch::Tensor AcceleratorCore::reduce(const torch::Tensor& tensor,
                                      const std::string& reduction) const {
  TORCH_CHECK_VALUE(
      reduction == "sum" || reduction == "mean" || reduction == "max" || reduction == "none",
      "reduce: expected sum, mean, max or none (a sum, too), got ", reduction);
  const torch::NoGradGuard no_grad;
  auto result = tensor.detach().clone().contiguous();
  if (axis_.size() == 1) return result;
  axis_.all_reduce(result, reduction == "max" ? comm::ReduceOp::max : comm::ReduceOp::sum).wait();
  return reduction == "mean" ? result / axis_.size() : result;
}

torch::Tensor AcceleratorCore::pad(const torch::Tensor& tensor, int64_t dim, double pad_index,
                                   bool pad_first) const {
  if (dim < -tensor.dim() || dim >= tensor.dim()) return tensor;
  int64_t longest = 0;
  for (const auto& text : axis_.all_gather_bytes(std::to_string(tensor.size(dim)))) {
    longest = std::max<int64_t>(longest, std::stoll(text));
  }
  const auto missing = longest - tensor.size(dim);
  if (missing == 0) return tensor;
  auto sizes = tensor.sizes().vec();
  sizes[static_cast<size_t>(dim < 0 ? dim + tensor.dim() : dim)] = missing;
  const auto padding = at::full(sizes, pad_index, tensor.options());
  return pad_first ? at::cat({padding, tensor}, dim) : at::cat({tensor, padding}, dim);
}

std::pair<int64_t, int64_t> AcceleratorCore::share_of(int64_t count) const {
  const auto each = count / axis_.size(), more = count % axis_.size(), rank = int64_t{axis_.rank()};
  const auto begin = rank * each + std::min(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

std::vector<std::pair<std::string, torch::Tensor>> AcceleratorCore::state_dict(
    ModelRecord& model) const {
  std::vector<std::pair<std::string, torch::Tensor>> state;
  const std::string_view prefix = model.wrapped ? "module." : "";
  const auto add = [&](const std::string& name, const torch::Tensor& value) {
    state.emplace_back(name.substr(prefix.size()), value.detach().to(torch::kCPU).clone());
  };
  model.parallel.unshard();
  for (const auto& item : model.root->named_parameters()) add(item.key(), item.value());
  model.parallel.reshard();
  for (const auto& item : model.root->named_buffers()) add(item.key(), item.value());
  return state;
}

}  // namespace tessera
