// Memory as direct input and output want it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

inline constexpr int64_t kPageBytes = 4096;  ///< direct input and output: all multiples of it
inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

/// A page of this machine, which may be a multiple of kPageBytes: memory comes and goes by it.
int64_t system_page_bytes();

/// `bytes` of fresh pages, all zero, to be unmapped by whoever has them; null: there are none. From kHugePageBytes on they are
/// aligned to it, and huge ones if the kernel will.
std::byte* map_pages(int64_t bytes);

/// Memory of map_pages().
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(int64_t bytes);  ///< at least `bytes`; std::bad_alloc
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
