#include "tessera/comm/queue.h"

#include <utility>

#include "tessera/comm/thread.h"

namespace tessera::comm {

Queue::Queue(const std::string& thread_name, std::chrono::milliseconds timeout)
    : timeout_(timeout), thread_(start_thread(thread_name, [this] { run(); })) {}

Queue::~Queue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_one();
  thread_.join();
}

std::future<void> Queue::push(Job job) {
  Entry entry{.job = std::move(job), .done = {}};
  auto future = entry.done.get_future();
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
  }
  ready_.notify_one();
  return future;
}

std::exception_ptr Queue::run_one(Job& job) {
  if (failure_ == nullptr) {
    try {
      job(Deadline(timeout_));
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  job = nullptr;
  return failure_;
}

void Queue::run() {
  while (true) {
    Entry entry;
    {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [this] { return stopping_ || !entries_.empty(); });
      if (entries_.empty()) return;
      entry = std::move(entries_.front());
      entries_.pop_front();
    }
    if (const auto failure = run_one(entry.job)) {
      entry.done.set_exception(failure);
    } else {
      entry.done.set_value();
    }
  }
}

}  // namespace tessera::comm
