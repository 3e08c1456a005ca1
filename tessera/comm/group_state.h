// What stands behind a Group: its connections, its memory, its thread.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/exchange.h"
#include "tessera/comm/group.h"
#include "tessera/comm/queue.h"
#include "tessera/comm/shared_memory.h"

namespace tessera::comm {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start);

/// First line of a backend's message, without the source position that Gloo puts in front.
std::string reason_of(const std::exception& error);

/// What all handles of a group share, and its thread uses.
struct Group::State {
  State(GroupOptions group_options, const GlooDevice& device,
        const c10::intrusive_ptr<c10d::Store>& store);
  explicit State(std::string name) { options.name = std::move(name); }
  ~State();

  int size() const { return static_cast<int>(options.ranks.size()); }
  int run_rank() const { return options.ranks[options.rank]; }
  Algorithm algorithm(Operation operation, const at::Tensor& tensor, ReduceOp op = {}) const;
  void count(const Call& call);
  c10::DistError error(const Call& call, double seconds, const std::string& reason) const;

  /// Runs `body`, the group's thread's part of `call`, as RollCall::watch does.
  void run(const Call& call, const Deadline& deadline, const std::function<void()>& body);
  /// Runs `body`, a call of Gloo's own. Throws MissingPeers with all other ranks, because Gloo does
  /// not say for whom it waited.
  void by_gloo(const Deadline& deadline, const std::function<void()>& body) const;
  void all_gather(std::span<const at::Tensor> outputs, const at::Tensor& input,
                  const Deadline& deadline);
  /// outputs[r] = rank r's inputs[this rank]; `longest`: the most bytes of one of all ranks' parts.
  void all_to_all(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs,
                  int64_t longest, const Deadline& deadline);
  std::vector<std::string> gather_bytes(const std::string& bytes, const Deadline& deadline);

  bool by_device(const at::Tensor& tensor) const;  ///< on_device takes it
  std::string device_failure() const;              ///< of on_device's operations; empty: none
  void check_device() const;                       ///< throws it, for a call's message
  void check() const;                              ///< throws it with a message of its own

  GroupOptions options;
  c10::intrusive_ptr<c10d::Backend> gloo;
  c10::intrusive_ptr<c10d::Backend> on_device;  // NCCL; null without a GPU
  std::optional<Exchange> exchange;
  std::unique_ptr<SharedMemory> memory;
  std::mutex counters_mutex;
  Counters counters;
  std::unique_ptr<Queue> queue;  // last: destroyed first, before what its thread uses

 private:
  void connect(const GlooDevice& device, const c10::intrusive_ptr<c10d::Store>& store);
  void announce(const Call& call, const Deadline& deadline);
  std::vector<int> others() const;
  std::vector<int> awaited() const;
};

}  // namespace tessera::comm
