#include <liburing.h>

#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/offload/queue.h"

namespace tessera::offload {
namespace {

class UringQueue : public Queue {
 public:
  explicit UringQueue(const io_uring& ring) : ring_(ring) {}
  ~UringQueue() override { ::io_uring_queue_exit(&ring_); }

  void start(const Operation& operation) override {
    auto* entry = ::io_uring_get_sqe(&ring_);
    if (entry == nullptr) throw SystemError("io_uring: more operations than the queue is deep");
    const auto bytes = static_cast<unsigned>(operation.bytes);
    const auto offset = static_cast<uint64_t>(operation.offset);
    if (operation.writes) {
      ::io_uring_prep_write(entry, operation.fd, operation.data, bytes, offset);
    } else {
      ::io_uring_prep_read(entry, operation.fd, operation.data, bytes, offset);
    }
    ::io_uring_sqe_set_data64(entry, operation.tag);
    int result = 0;
    do {
      result = ::io_uring_submit(&ring_);
    } while (result == -EINTR || result == -EAGAIN);
    if (result < 0) throw SystemError(fmt::format("io_uring: {}", std::strerror(-result)));
  }

  std::optional<Outcome> next(std::chrono::milliseconds at_most) override {
    io_uring_cqe* entry = nullptr;
    __kernel_timespec time{.tv_sec = at_most.count() / 1000,
                           .tv_nsec = at_most.count() % 1000 * 1'000'000};
    const int result = ::io_uring_wait_cqe_timeout(&ring_, &entry, &time);
    if (result == -ETIME || result == -EINTR || result == -EAGAIN) return std::nullopt;
    if (result < 0) throw SystemError(fmt::format("io_uring: {}", std::strerror(-result)));
    const Outcome outcome{.tag = ::io_uring_cqe_get_data64(entry), .result = entry->res};
    ::io_uring_cqe_seen(&ring_, entry);
    return outcome;
  }

  const char* name() const override { return "io_uring"; }

 private:
  io_uring ring_;
};

}  // namespace

std::unique_ptr<Queue> make_uring_queue(int depth, std::string& why) {
  io_uring ring{};
  if (const int result = ::io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0);
      result < 0) {
    why = std::strerror(-result);
    return nullptr;
  }
  return std::make_unique<UringQueue>(ring);
}

}  // namespace tessera::offload
