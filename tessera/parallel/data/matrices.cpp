// Whole matrices from slices, for optimizers that need them.
#include <algorithm>
#include <utility>

#include "tessera/parallel/data/engine.h"

namespace tessera::parallel {
namespace {

/// The part of [0, end) that lies in slice `index` of a buffer: begin and length.
std::pair<int64_t, int64_t> within_slice(const FlatBuffer& buffer, int64_t index, int64_t end) {
  const int64_t begin = std::min(buffer.slice_size() * index, end);
  return {begin, std::min(buffer.slice_size() * (index + 1), end) - begin};
}

/// [matrices()] the values of all of a buffer's matrices, of which `own` are this rank's.
torch::Tensor gathered_matrices(const FlatBuffer& buffer, const mesh::Axis& axis,
                                const torch::Tensor& own) {
  if (buffer.plan().num_slices == 1) return own;
  auto whole = torch::empty({buffer.matrices()}, own.options());
  std::vector<torch::Tensor> parts;
  for (int rank = 0; rank < axis.size(); ++rank) {
    const auto [begin, length] = within_slice(buffer, rank, buffer.matrices());
    parts.push_back(whole.narrow(0, begin, length));
  }
  axis.all_gather_uneven(parts, own).wait();
  return whole;
}

}  // namespace

void DataParallel::update_matrices(const optim::MatrixSlices& slices,
                                   const UpdateMatrix& update) const {
  const torch::NoGradGuard no_grad;
  size_t slice = 0;
  for (const auto& unit : engine().units) {
    for (const auto& buffer : unit.buffers()) {
      if (buffer.matrices() == 0 || !buffer.trained()) continue;
      const auto [begin, length] = within_slice(buffer, buffer.options().slice, buffer.matrices());
      const auto none = torch::empty({0}, buffer.slice().options().dtype(torch::kBFloat16));
      const auto whole = gathered_matrices(buffer, engine().axes.of(buffer).gather,
                                           length > 0 ? slices.direction(slice) : none);
      auto result = torch::zeros({length}, whole.options().dtype(torch::kFloat32));
      for (const auto& entry : buffer.entries()) {
        if (entry.treatment != optim::Treatment::matrices) continue;
        const int64_t size = entry.parameter.numel();
        const int64_t from = std::max(begin, entry.offset);
        const int64_t to = std::min(begin + length, entry.offset + size);
        const auto matrix = whole.narrow(0, entry.offset, size).view(entry.parameter.sizes());
        const auto updated = update(entry.name, matrix, from < to);
        if (from >= to) continue;
        result.narrow(0, from - begin, to - from)
            .copy_(updated.reshape({-1}).narrow(0, from - entry.offset, to - from));
      }
      if (length > 0) slices.apply(slice++, result);
    }
  }
}

}  // namespace tessera::parallel
