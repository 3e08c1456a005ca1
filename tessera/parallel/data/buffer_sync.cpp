#include "tessera/parallel/data/buffer_sync.h"

#include <ATen/ops/cat.h>

#include <map>

namespace tessera::parallel {

void synchronise(const NamedBuffers& buffers, BufferSync how, const mesh::Axis& axis) {
  if (how == BufferSync::per_rank || axis.size() == 1) return;
  const torch::NoGradGuard no_grad;
  std::map<std::string, std::vector<torch::Tensor>> alike;
  for (const auto& [name, buffer] : buffers) {
    const auto kind = c10::toString(buffer.scalar_type()) + buffer.device().str();
    if (buffer.numel() > 0) alike[kind].push_back(buffer.detach());
  }
  for (const auto& [kind, tensors] : alike) {
    std::vector<torch::Tensor> flat;
    for (const auto& tensor : tensors) flat.push_back(tensor.reshape({-1}));
    const auto all = at::cat(flat);
    if (how == BufferSync::average && all.is_floating_point()) {
      axis.all_reduce(all).wait();
      all.div_(axis.size());
    } else {
      axis.broadcast(all, 0).wait();
    }
    int64_t begin = 0;
    for (auto tensor : tensors) {
      tensor.copy_(all.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

}  // namespace tessera::parallel
