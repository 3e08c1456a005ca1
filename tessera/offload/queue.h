// Reads and writes under way at the same time: what a Space (space.h) works with.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::offload {

struct Operation {
  int fd = -1;
  int64_t offset = 0;  ///< in the file; it, `data` and `bytes` are multiples of kPageBytes
  std::byte* data = nullptr;
  int64_t bytes = 0;
  bool writes = false;
  uint64_t tag = 0;  ///< told with its outcome
};

struct Outcome {
  uint64_t tag = 0;
  int64_t result = 0;  ///< bytes moved, which may be fewer than asked for, or -errno
};

/// Belongs to one thread. Nothing may be under way when it is destroyed, unless the memory involved outlives it.
class Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;

  /// At most as many at a time as the queue is deep.
  virtual void start(const Operation& operation) = 0;

  /// One that ended; none if none does in that time.
  virtual std::optional<Outcome> next(std::chrono::milliseconds at_most) = 0;

  virtual const char* name() const = 0;  ///< "io_uring", "threads"
};

/// By io_uring. Null where the kernel refuses it; `why` says how.
std::unique_ptr<Queue> make_uring_queue(int depth, std::string& why);

/// A thread for each operation at a time.
std::unique_ptr<Queue> make_thread_queue(int depth);

}  // namespace tessera::offload
