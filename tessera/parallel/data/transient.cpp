#include "tessera/parallel/data/transient.h"

#include <c10/core/Allocator.h>
#include <c10/util/strides.h>

namespace tessera::parallel {

Transient::Transient(int64_t size, torch::Dtype dtype, torch::Device device,
                     c10::Allocator* allocator) {
  const auto bytes = size * static_cast<int64_t>(torch::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device),
      allocator != nullptr ? allocator : c10::GetAllocator(device.type()), /*resizable=*/false);
  tensor_ = torch::empty({0}, torch::dtype(dtype).device(device));
  tensor_.set_(c10::Storage(std::move(storage)), 0, {size}, {1});
}

torch::Tensor Transient::part(int64_t offset, torch::IntArrayRef sizes) const {
  auto part = torch::empty({0}, tensor_.options());
  part.set_(tensor_.storage(), tensor_.storage_offset() + offset, sizes,
            c10::contiguous_strides(sizes));
  return part;
}

void Transient::take(const torch::Tensor& ahead) {
  auto* source = ahead.storage().unsafeGetStorageImpl();
  storage()->set_data_ptr_noswap(source->set_data_ptr(c10::DataPtr(nullptr, ahead.device())));
}

void Transient::allocate() {
  if (allocated()) return;
  storage()->set_data_ptr_noswap(storage()->allocator()->allocate(storage()->nbytes()));
}

void Transient::free() {
  if (!allocated()) return;
  storage()->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor_.device()));
}

}  // namespace tessera::parallel
