#include "tessera/memory/stretches.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

namespace tessera::memory {
namespace {

using at::Tensor;

int64_t end_of(const Tensor& tensor) {
  if (tensor.numel() == 0) return tensor.storage_offset();
  int64_t last = tensor.storage_offset();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return last + 1;
}

/// From `first` on, those of the same memory.
std::vector<size_t> those_beside(const std::vector<Tensor>& tensors, size_t first) {
  std::vector<size_t> found;
  for (size_t i = first; i < tensors.size(); ++i) {
    if (tensors[i].is_alias_of(tensors[first]) && tensors[i].dtype() == tensors[first].dtype())
      found.push_back(i);
  }
  return found;
}

}  // namespace

Stretches::Stretches(const std::vector<Tensor>& given) : places_(given.size()) {
  std::vector<Tensor> tensors;
  for (const auto& tensor : given) tensors.push_back(tensor.detach());  // they hold no graph
  std::vector<bool> placed(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (placed[i]) continue;
    const auto together = those_beside(tensors, i);
    for (const size_t j : together) placed[j] = true;
    place(tensors, together);
  }
}

std::vector<Tensor> Stretches::tensors_in(const std::vector<Tensor>& stretches) const {
  std::vector<Tensor> tensors;
  for (const auto& [index, sizes, strides, offset] : places_) {
    const auto& stretch = stretches[index];
    tensors.push_back(stretch.as_strided(sizes, strides, stretch.storage_offset() + offset));
  }
  return tensors;
}

void Stretches::place(const std::vector<Tensor>& tensors, const std::vector<size_t>& together) {
  int64_t begin = tensors[together[0]].storage_offset(), end = begin, count = 0;
  for (const size_t i : together) {
    begin = std::min(begin, tensors[i].storage_offset());
    end = std::max(end, end_of(tensors[i]));
    count += tensors[i].numel();
  }
  if (end - begin <= count) {
    for (const size_t i : together) {
      const auto& tensor = tensors[i];
      places_[i] = {stretches_.size(), tensor.sizes().vec(), tensor.strides().vec(),
                    tensor.storage_offset() - begin};
    }
    stretches_.push_back(tensors[together[0]].as_strided({end - begin}, {1}, begin));
    return;
  }
  for (const size_t i : together) {  // there are gaps
    const auto dense = at::empty_like(tensors[i]).copy_(tensors[i]);
    places_[i] = {stretches_.size(), dense.sizes().vec(), dense.strides().vec(), 0};
    stretches_.push_back(dense.as_strided({dense.numel()}, {1}, 0));
  }
}

}  // namespace tessera::memory
