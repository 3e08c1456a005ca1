// The one thread of a group that runs its operations, in the order in which they were started.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>

namespace tessera::comm {

/// A point in time after which a wait gives up.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout)
      : end_(std::chrono::steady_clock::now() + timeout) {}

  bool passed() const { return std::chrono::steady_clock::now() >= end_; }

  /// At least 1 ms: for LibTorch 0 means "no deadline".
  std::chrono::milliseconds left() const {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }

 private:
  std::chrono::steady_clock::time_point end_;
};

/// Why one thread: an operation may have several steps (exchange, sum, gather), and every rank must
/// issue the steps in the same order. After an operation failed, all later ones fail at once with
/// the same reason: the peers' streams are out of step from then on. What a job holds (tensors) is
/// released before its future becomes ready.
class Queue {
 public:
  using Job = std::function<void(const Deadline&)>;

  /// `thread_name`: shown by the operating system, cut to 15 letters.
  Queue(const std::string& thread_name, std::chrono::milliseconds timeout);
  ~Queue();  ///< runs what is left, then joins the thread
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// The future holds what `job` threw. A job must return or throw within `timeout` of its start.
  std::future<void> push(Job job);

 private:
  struct Entry {
    Job job;
    std::promise<void> done;
  };

  void run();
  std::exception_ptr run_one(Job& job);

  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Entry> entries_;
  bool stopping_ = false;
  std::exception_ptr failure_;  // touched by the thread alone
  std::thread thread_;
};

}  // namespace tessera::comm
