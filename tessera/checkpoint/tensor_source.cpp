#include "tessera/checkpoint/tensor_source.h"

#include <cassert>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"

namespace tessera::checkpoint {

int64_t TensorInfo::num_elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

const TensorInfo& TensorSource::info(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, info] : tensors_) names.push_back(known);
  user_error("{}: holds no tensor '{}'{}", path_.string(), name, did_you_mean(name, names));
}

void TensorSource::read(std::string_view name, int64_t begin,
                        std::span<std::byte> destination) const {
  const auto& found = info(name);
  assert(begin >= 0 && static_cast<int64_t>(destination.size()) <=
                           found.num_bytes() - begin * dtype_bytes(found.dtype));
  if (!destination.empty()) read_part(std::string(name), found, begin, destination);
}

}  // namespace tessera::checkpoint
