// Threads beside the program's own.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace tessera::comm {

/// A thread that gets none of the process's signals. `name`: shown by the operating system, cut to
/// 15 letters.
std::thread start_thread(const std::string& name, std::function<void()> body);

/// What `task` returns or throws, or nothing after `limit`; then its thread stays behind, waiting,
/// until the process ends. For calls into LibTorch whose own deadline does not cover every wait:
/// `task` must own what it uses.
template <typename Result>
std::optional<Result> within(std::chrono::milliseconds limit, std::function<Result()> task) {
  std::packaged_task<Result()> packaged(std::move(task));
  auto result = packaged.get_future();
  const auto shared = std::make_shared<std::packaged_task<Result()>>(std::move(packaged));
  start_thread("deadline", [shared] { (*shared)(); }).detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace tessera::comm
