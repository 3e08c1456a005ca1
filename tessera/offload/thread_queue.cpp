#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "tessera/offload/queue.h"

namespace tessera::offload {
namespace {

class ThreadQueue : public Queue {
 public:
  explicit ThreadQueue(int depth) {
    for (int i = 0; i < depth; ++i) threads_.emplace_back([this] { work(); });
  }

  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    asked_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void start(const Operation& operation) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(operation);
    }
    asked_.notify_one();
  }

  std::optional<Outcome> next(std::chrono::milliseconds at_most) override {
    std::unique_lock lock(mutex_);
    if (!ended_.wait_for(lock, at_most, [this] { return !outcomes_.empty(); })) return std::nullopt;
    const auto outcome = outcomes_.front();
    outcomes_.pop_front();
    return outcome;
  }

  const char* name() const override { return "threads"; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      asked_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      const auto operation = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const auto bytes = static_cast<size_t>(operation.bytes);
      const auto moved = operation.writes
                             ? ::pwrite(operation.fd, operation.data, bytes, operation.offset)
                             : ::pread(operation.fd, operation.data, bytes, operation.offset);
      const int64_t result = moved < 0 ? -errno : moved;
      lock.lock();
      outcomes_.push_back({.tag = operation.tag, .result = result});
      ended_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable asked_, ended_;
  std::deque<Operation> waiting_;
  std::deque<Outcome> outcomes_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Queue> make_thread_queue(int depth) { return std::make_unique<ThreadQueue>(depth); }

}  // namespace tessera::offload
