#include "tessera/train/muon.h"

#include <cstring>
#include <utility>

#include "tessera/optim/muon.h"

namespace tessera::train {

Orthogonaliser::Orthogonaliser(parallel::DataParallel parallel,
                               const parallel::TensorParts& tensor_parts,
                               optim::OptimizerOptions options)
    : parallel_(std::move(parallel)), options_(std::move(options)) {
  std::map<std::string, std::vector<std::string>> of_axis;  // names of parameters
  for (const auto& [name, part] : tensor_parts) {
    if (part.ranks.size() > 1) of_axis[part.ranks.name()].push_back(name);
  }
  for (const auto& [axis_name, names] : of_axis) {
    std::vector<Stripe> own;
    for (const auto& name : names) own.push_back(tensor_parts.at(name).stripe);
    const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(Stripe));
    const auto& axis = tensor_parts.at(names.front()).ranks;
    for (const auto& of_rank : axis.all_gather_bytes(bytes)) {
      TORCH_INTERNAL_ASSERT(of_rank.size() == bytes.size());
      for (size_t i = 0; i < names.size(); ++i) {
        Stripe stripe;
        std::memcpy(&stripe, of_rank.data() + i * sizeof(Stripe), sizeof(Stripe));
        auto& divided = divided_[names[i]];
        divided.shape = tensor_parts.at(names[i]).shape;
        divided.axis = axis;
        divided.stripes.push_back(stripe);
      }
    }
  }
}

void Orthogonaliser::operator()(const optim::MatrixSlices& slices) const {
  parallel_.update_matrices(slices, [this](const std::string& name, const torch::Tensor& matrix,
                                           bool needed) { return updated(name, matrix, needed); });
}

torch::Tensor Orthogonaliser::updated(const std::string& name, const torch::Tensor& matrix,
                                      bool needed) const {
  const auto found = divided_.find(name);
  if (found == divided_.end()) {
    return needed ? optim::orthogonalised(matrix, options_) : torch::Tensor();
  }
  const auto& divided = found->second;
  const auto& stripes = divided.stripes;
  auto whole = torch::empty(divided.shape, matrix.options());
  std::vector<torch::Tensor> parts;
  for (const auto& stripe : stripes) {
    parts.push_back(torch::empty({stripe.taken(whole.numel())}, matrix.options()));
  }
  divided.axis.all_gather_uneven(parts, matrix.reshape({-1})).wait();
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
  each_stretch(static_cast<size_t>(divided.axis.rank()),
               [&](int64_t position, int64_t k, int64_t n) {
                 own.narrow(0, k, n).copy_(result.narrow(0, position, n));
               });
  return own.view(matrix.sizes());
}

}  // namespace tessera::train
