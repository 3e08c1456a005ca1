#include "tessera/base/page_buffer.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace tessera {

PageBuffer::PageBuffer(int64_t bytes) : size_(whole_pages(bytes)) {
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(data);
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(size_));
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void PageBuffer::populate() const {
  if (data_ != nullptr) ::madvise(data_, static_cast<size_t>(size_), MADV_POPULATE_WRITE);
}

}  // namespace tessera
