#include "tessera/memory/activation_store.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace tessera::memory {
namespace {

using at::Tensor;

/// Tensors as stretches of memory, each once, that hold them as they lie: operators look at how their arguments lie
/// beside one another, and may round otherwise where they lie apart.
class Stretches {
 public:
  explicit Stretches(const std::vector<Tensor>& tensors) : places_(tensors.size()) {
    std::vector<bool> placed(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (placed[i]) continue;
      const auto together = those_beside(tensors, i);
      for (const size_t j : together) placed[j] = true;
      place(tensors, together);
    }
  }

  /// On the device, one-dimensional; freed when it is asked for once.
  std::vector<Tensor> take() { return std::exchange(stretches_, {}); }

  /// The tensors that lie in copies of the stretches.
  std::vector<Tensor> tensors_in(const std::vector<Tensor>& stretches) const {
    std::vector<Tensor> tensors;
    for (const auto& [stretch, sizes, strides, offset] : places_)
      tensors.push_back(stretches[stretch].as_strided(sizes, strides, offset));
    return tensors;
  }

 private:
  struct Place {
    size_t stretch = 0;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;
  };

  static int64_t end_of(const Tensor& tensor) {
    if (tensor.numel() == 0) return tensor.storage_offset();
    int64_t last = tensor.storage_offset();
    for (int64_t dim = 0; dim < tensor.dim(); ++dim)
      last += (tensor.size(dim) - 1) * tensor.stride(dim);
    return last + 1;
  }

  /// From `first` on, those of the same memory.
  static std::vector<size_t> those_beside(const std::vector<Tensor>& tensors, size_t first) {
    std::vector<size_t> found;
    for (size_t i = first; i < tensors.size(); ++i) {
      if (tensors[i].is_alias_of(tensors[first]) && tensors[i].dtype() == tensors[first].dtype())
        found.push_back(i);
    }
    return found;
  }

  void place(const std::vector<Tensor>& tensors, const std::vector<size_t>& together) {
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

  std::vector<Tensor> stretches_;
  std::vector<Place> places_;
};

class PinnedTensors : public StoredTensors {
 public:
  explicit PinnedTensors(const std::vector<Tensor>& tensors) : stretches_(tensors) {
    for (const auto& stretch : stretches_.take()) {
      TORCH_CHECK_VALUE(stretch.is_cuda(), "offload: expected activations on CUDA, got some on ",
                        stretch.device(), "; set offload = nullptr");
      devices_.push_back(stretch.device());
      const auto options = stretch.options().device(at::kCPU).pinned_memory(true);
      // Later uses of `stretch` and of the copy come after it on the stream.
      host_.push_back(at::empty_like(stretch, options).copy_(stretch, /*non_blocking=*/true));
    }
  }

  std::vector<Tensor> tensors() override {
    std::vector<Tensor> copies;
    for (size_t i = 0; i < host_.size(); ++i)
      copies.push_back(host_[i].to(devices_[i], /*non_blocking=*/true));
    return stretches_.tensors_in(copies);
  }

 private:
  Stretches stretches_;
  std::vector<Tensor> host_;
  std::vector<at::Device> devices_;
};

class PinnedStore : public ActivationStore {
 public:
  std::shared_ptr<StoredTensors> put(const std::vector<Tensor>& tensors) override {
    return std::make_shared<PinnedTensors>(tensors);
  }
};

template <typename Byte>
std::span<Byte> bytes_of(const Tensor& dense) {
  return {static_cast<Byte*>(dense.data_ptr()), dense.nbytes()};
}

class TensorsOnDrives : public StoredTensors {
 public:
  TensorsOnDrives(std::shared_ptr<offload::StoredStack> stack, const std::vector<Tensor>& tensors)
      : stack_(std::move(stack)), stretches_(tensors), entry_(put(stretches_.take())) {}

  std::vector<Tensor> tensors() override {
    std::vector<Tensor> copies;
    std::vector<std::span<std::byte>> pieces;
    for (const auto& [size, options] : shapes_) {
      copies.push_back(at::empty({size}, options.device(at::kCPU)));
      pieces.push_back(bytes_of<std::byte>(copies.back()));
    }
    stack_->read(entry_, pieces);
    for (size_t i = 0; i < copies.size(); ++i)
      copies[i] = copies[i].to(shapes_[i].options.device());
    return stretches_.tensors_in(copies);
  }

 private:
  struct Shape {
    int64_t size = 0;
    at::TensorOptions options;
  };

  offload::StoredStack::Entry put(const std::vector<Tensor>& stretches) {
    std::vector<Tensor> host;
    std::vector<std::span<const std::byte>> pieces;
    for (const auto& stretch : stretches) {
      host.push_back(stretch.cpu());
      pieces.push_back(bytes_of<const std::byte>(host.back()));
      shapes_.push_back({stretch.numel(), stretch.options()});
    }
    return stack_->put(pieces);
  }

  std::shared_ptr<offload::StoredStack> stack_;
  Stretches stretches_;
  std::vector<Shape> shapes_;
  offload::StoredStack::Entry entry_;  // last: it goes before the stack, and put() fills the others
};

class DriveStore : public ActivationStore {
 public:
  explicit DriveStore(std::shared_ptr<offload::StoredStack> stack) : stack_(std::move(stack)) {}
  std::shared_ptr<StoredTensors> put(const std::vector<Tensor>& tensors) override {
    return std::make_shared<TensorsOnDrives>(stack_, tensors);
  }

 private:
  std::shared_ptr<offload::StoredStack> stack_;
};

}  // namespace

std::shared_ptr<ActivationStore> pinned_store() { return std::make_shared<PinnedStore>(); }

std::shared_ptr<ActivationStore> drive_store(std::shared_ptr<offload::StoredStack> stack) {
  return std::make_shared<DriveStore>(std::move(stack));
}

}  // namespace tessera::memory
