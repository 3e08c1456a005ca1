// Drives with faults, for tests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "tessera/offload/queue.h"

namespace tessera::offload {

/// What a queue's outcomes become.
using Fault = std::function<void(const Operation& operation, Outcome& outcome)>;

/// A queue with faults: what it did is told otherwise, or done otherwise.
class FaultyQueue : public Queue {
 public:
  FaultyQueue(std::unique_ptr<Queue> queue, Fault fault)
      : queue_(std::move(queue)), fault_(std::move(fault)) {}
  void start(const Operation& operation) override {
    operations_[operation.tag] = operation;
    queue_->start(operation);
  }
  std::optional<Outcome> next(std::chrono::milliseconds at_most) override {
    auto outcome = queue_->next(at_most);
    if (outcome) fault_(operations_.at(outcome->tag), *outcome);
    if (outcome && outcome->result == kNever) return std::nullopt;
    return outcome;
  }
  const char* name() const override { return queue_->name(); }

  static constexpr int64_t kNever = -100000;

 private:
  std::unique_ptr<Queue> queue_;
  Fault fault_;
  std::map<uint64_t, Operation> operations_;
};

/// A SpaceOptions::wrap_queue.
inline auto with_fault(Fault fault) {
  return [fault = std::move(fault)](std::unique_ptr<Queue> queue) {
    return std::make_unique<FaultyQueue>(std::move(queue), fault);
  };
}

}  // namespace tessera::offload
