#include "tessera/memory/activation_store.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include <cstddef>
#include <span>
#include <utility>

namespace tessera::memory {
namespace {

using at::Tensor;

class PinnedTensors : public StoredTensors {
 public:
  explicit PinnedTensors(const std::vector<Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      TORCH_CHECK_VALUE(tensor.is_cuda(), "offload: expected activations on CUDA, got some on ",
                        tensor.device(), "; set offload = nullptr");
      devices_.push_back(tensor.device());
      const auto options = tensor.options().device(at::kCPU).pinned_memory(true);
      // Later uses of `tensor` and of the copy come after it on the stream.
      host_.push_back(at::empty_like(tensor, options).copy_(tensor, /*non_blocking=*/true));
    }
  }

  std::vector<Tensor> tensors() override {
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < host_.size(); ++i)
      tensors.push_back(host_[i].to(devices_[i], /*non_blocking=*/true));
    return tensors;
  }

 private:
  std::vector<Tensor> host_;
  std::vector<at::Device> devices_;
};

class PinnedStore : public ActivationStore {
 public:
  std::shared_ptr<StoredTensors> put(const std::vector<Tensor>& tensors) override {
    return std::make_shared<PinnedTensors>(tensors);
  }
};

/// `tensor` on the host, its numbers one after the other in memory.
Tensor dense_on_host(const Tensor& tensor) {
  const auto host = tensor.cpu();
  return host.is_non_overlapping_and_dense() ? host : at::empty_like(host).copy_(host);
}

template <typename Byte>
std::span<Byte> bytes_of(const Tensor& dense) {
  return {static_cast<Byte*>(dense.data_ptr()), dense.nbytes()};
}

class TensorsOnDrives : public StoredTensors {
 public:
  TensorsOnDrives(std::shared_ptr<offload::StoredStack> stack, const std::vector<Tensor>& tensors)
      : stack_(std::move(stack)), entry_(put(tensors)) {}

  std::vector<Tensor> tensors() override {
    std::vector<Tensor> tensors;
    std::vector<std::span<std::byte>> pieces;
    for (const auto& [sizes, strides, options] : shapes_) {
      tensors.push_back(at::empty_strided(sizes, strides, options.device(at::kCPU)));
      pieces.push_back(bytes_of<std::byte>(tensors.back()));
    }
    stack_->read(entry_, pieces);
    for (size_t i = 0; i < tensors.size(); ++i)
      tensors[i] = tensors[i].to(shapes_[i].options.device());
    return tensors;
  }

 private:
  struct Shape {
    std::vector<int64_t> sizes, strides;
    at::TensorOptions options;
  };

  offload::StoredStack::Entry put(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> dense;
    std::vector<std::span<const std::byte>> pieces;
    for (const auto& tensor : tensors) {
      dense.push_back(dense_on_host(tensor));
      pieces.push_back(bytes_of<const std::byte>(dense.back()));
      shapes_.push_back(
          {dense.back().sizes().vec(), dense.back().strides().vec(), tensor.options()});
    }
    return stack_->put(pieces);
  }

  std::shared_ptr<offload::StoredStack> stack_;
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
