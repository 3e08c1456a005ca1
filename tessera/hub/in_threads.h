// Work on many files at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::hub {

/// Threads that end once one of them has failed.
class Threads {
 public:
  explicit Threads(int num_threads) : num_threads_(num_threads) {}

  /// Runs `action(connection, i)` for i in [0, count), in several threads, each with a connection that
  /// `connect()` makes; throws the first error of any.
  template <typename Connect, typename Action>
  void for_each(size_t count, const Connect& connect, const Action& action) {
    std::atomic<size_t> next{0};
    std::exception_ptr error;
    std::mutex mutex;
    const auto work = [&] {
      try {
        auto connection = connect();
        for (size_t i = next++; i < count && !has_failed_; i = next++) action(*connection, i);
      } catch (const Stopped&) {
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!has_failed_.exchange(true)) error = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> threads;
      const auto size = std::min(count, static_cast<size_t>(num_threads_));
      for (size_t i = 0; i < size; ++i) threads.emplace_back(work);
    }
    if (error) std::rethrow_exception(error);
  }

  /// To be called now and then in an action: ends it if another has failed.
  void stop_if_failed() const {
    if (has_failed_) throw Stopped();
  }

 private:
  struct Stopped {};

  int num_threads_;
  std::atomic<bool> has_failed_{false};
};

}  // namespace tessera::hub
