#include "tessera/parallel/data/flat_buffer.h"

#include <algorithm>

namespace tessera::parallel {
namespace {

int64_t aligned(int64_t elements, int64_t element_bytes) {
  const int64_t step = std::max<int64_t>(1, 64 / element_bytes);
  return (elements + step - 1) / step * step;
}

}  // namespace

FlatBuffer::FlatBuffer(const std::vector<Named>& parameters,
                       const std::function<bool(const Named&)>& decays) {
  TORCH_INTERNAL_ASSERT(!parameters.empty());
  const auto options = parameters.front().second.options().requires_grad(false);
  for (const auto& [name, parameter] : parameters) {
    TORCH_CHECK_VALUE(
        parameter.scalar_type() == options.dtype() && parameter.device() == options.device(), name,
        ": expected ", options.dtype(), " on ", options.device(),
        " as the unit's first parameter (", parameters.front().first, "), got ",
        parameter.scalar_type(), " on ", parameter.device());
    entries_.push_back({.name = name, .parameter = parameter, .decays = decays({name, parameter})});
  }
  std::stable_partition(entries_.begin(), entries_.end(),
                        [](const auto& entry) { return entry.decays; });
  int64_t size = 0;
  for (auto& entry : entries_) {
    entry.offset = size;
    size += aligned(entry.parameter.numel(), entry.parameter.element_size());
    if (entry.decays) decayed_ = size;
  }

  const torch::NoGradGuard no_grad;
  data_ = torch::empty({size}, options);
  gradient_ = torch::zeros({size}, options);
  int64_t end = 0;  // of the parameter before: what lies between is padding
  for (auto& entry : entries_) {
    auto& parameter = entry.parameter;
    data_.slice(0, end, entry.offset).zero_();
    end = entry.offset + parameter.numel();
    const auto view = data_.slice(0, entry.offset, end).view(parameter.sizes());
    view.copy_(parameter);
    parameter.set_data(view);
    parameter.mutable_grad() = gradient_.slice(0, entry.offset, end).view(parameter.sizes());
  }
  data_.slice(0, end, size).zero_();
}

}  // namespace tessera::parallel
