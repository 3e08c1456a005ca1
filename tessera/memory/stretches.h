// What checkpointed modules keep, as it goes elsewhere. For this folder alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::memory {

/// Tensors as stretches of memory, each once, that hold them as they lie: operators look at how their arguments lie
/// beside one another, and may round otherwise where they lie apart.
class Stretches {
 public:
  explicit Stretches(const std::vector<at::Tensor>& tensors);

  /// On the device, one-dimensional; freed when it is asked for once.
  std::vector<at::Tensor> take() { return std::exchange(stretches_, {}); }

  /// The tensors that lie in copies of the stretches, or in these themselves.
  std::vector<at::Tensor> tensors_in(const std::vector<at::Tensor>& stretches) const;

 private:
  struct Place {
    size_t stretch = 0;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;
  };

  void place(const std::vector<at::Tensor>& tensors, const std::vector<size_t>& together);

  std::vector<at::Tensor> stretches_;
  std::vector<Place> places_;
};

}  // namespace tessera::memory
