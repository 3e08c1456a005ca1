// Memory as direct input and output want it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

inline constexpr int64_t kPageBytes = 4096;  ///< direct input and output: all multiples of it

/// Memory that begins at a page and holds whole pages.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(int64_t bytes);  ///< contents undefined; at least `bytes`
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept;
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }

  /// Gives it physical pages now, so that the first copy into it is not slowed by page faults.
  void populate() const;

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

/// `bytes` rounded up to whole pages.
constexpr int64_t whole_pages(int64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace tessera
