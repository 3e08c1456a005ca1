#include "tessera/train/muon.h"

#include <cstring>
#include <utility>

#include "tessera/optim/muon.h"

namespace tessera::train {

Orthogonaliser::Orthogonaliser(parallel::DataParallel parallel,
                               const parallel::TensorParts& tensor_parts, mesh::Axis tensor_axis,
                               optim::OptimizerOptions options)
    : parallel_(std::move(parallel)),
      tensor_axis_(std::move(tensor_axis)),
      options_(std::move(options)) {
  std::vector<Stripe> own;
  for (const auto& [name, part] : tensor_parts) own.push_back(part.stripe);
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(Stripe));
  const auto all = tensor_axis_.all_gather_bytes(bytes);
  size_t index = 0;
  for (const auto& [name, part] : tensor_parts) {
    auto& divided = divided_[name];
    divided.shape = part.shape;
    for (const auto& of_rank : all) {
      TORCH_INTERNAL_ASSERT(of_rank.size() == bytes.size());
      Stripe stripe;
      std::memcpy(&stripe, of_rank.data() + index * sizeof(Stripe), sizeof(Stripe));
      divided.stripes.push_back(stripe);
    }
    ++index;
  }
}

std::vector<torch::Tensor> Orthogonaliser::operator()(
    const std::vector<torch::Tensor>& directions) const {
  return parallel_.update_matrices(
      directions, [this](const std::string& name, const torch::Tensor& matrix, bool needed) {
        return updated(name, matrix, needed);
      });
}

torch::Tensor Orthogonaliser::updated(const std::string& name, const torch::Tensor& matrix,
                                      bool needed) const {
  const auto found = divided_.find(name);
  if (found == divided_.end() || tensor_axis_.size() == 1) {
    return needed ? optim::orthogonalised(matrix, options_) : torch::Tensor();
  }
  const auto& [shape, stripes] = found->second;
  auto whole = torch::empty(shape, matrix.options());
  std::vector<torch::Tensor> parts;
  for (const auto& stripe : stripes) {
    parts.push_back(torch::empty({stripe.taken(whole.numel())}, matrix.options()));
  }
  tensor_axis_.all_gather_uneven(parts, matrix.reshape({-1})).wait();
  if (!needed) return {};
  // The elements that a rank has, in its order: with few gaps, and of ranks that have the same heads
  // the same ones.
  const auto each_stretch = [&](size_t rank, const auto& visit) {
    stripes[rank].for_each_stretch(0, parts[rank].numel(), visit);
  };
  const auto flat = whole.view({-1});
  for (size_t rank = 0; rank < stripes.size(); ++rank) {
    each_stretch(rank, [&](int64_t position, int64_t k, int64_t n) {
      flat.narrow(0, position, n).copy_(parts[rank].narrow(0, k, n));
    });
  }
  const auto result = optim::orthogonalised(whole, options_).reshape({-1});
  auto own = torch::empty({matrix.numel()}, result.options());
  each_stretch(static_cast<size_t>(tensor_axis_.rank()),
               [&](int64_t position, int64_t k, int64_t n) {
                 own.narrow(0, k, n).copy_(result.narrow(0, position, n));
               });
  return own.view(matrix.sizes());
}

}  // namespace tessera::train
