#include "tessera/base/page_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

namespace tessera {

int64_t system_page_bytes() {
  static const int64_t bytes = std::max(kPageBytes, int64_t{::sysconf(_SC_PAGESIZE)});
  return bytes;
}

std::byte* map_pages(int64_t bytes) {
  const int64_t page = system_page_bytes();
  const auto size = static_cast<size_t>((bytes + page - 1) / page * page);
  constexpr auto kHuge = static_cast<uintptr_t>(kHugePageBytes);
  const size_t extra = size >= kHuge ? kHuge : 0;
  void* mapped =
      ::mmap(nullptr, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  if (extra == 0) return begin;
  const size_t before = (kHuge - reinterpret_cast<uintptr_t>(begin) % kHuge) % kHuge;
  if (before > 0) ::munmap(begin, before);
  if (before < extra) ::munmap(begin + before + size, extra - before);
  // Only a wish: without huge pages it works the same.
  ::madvise(begin + before, size, MADV_HUGEPAGE);
  return begin + before;
}

PageBuffer::PageBuffer(int64_t bytes) : size_(whole_pages(bytes)) {
  if (size_ == 0) return;
  data_ = map_pages(size_);
  if (data_ == nullptr) throw std::bad_alloc();
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
