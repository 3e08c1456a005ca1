#include <ATen/ops/empty.h>

#include <cstddef>
#include <span>
#include <utility>

#include "tessera/memory/activation_store.h"
#include "tessera/memory/stretches.h"

namespace tessera::memory {
namespace {

using at::Tensor;

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

std::shared_ptr<ActivationStore> drive_store(std::shared_ptr<offload::StoredStack> stack) {
  return std::make_shared<DriveStore>(std::move(stack));
}

}  // namespace tessera::memory
