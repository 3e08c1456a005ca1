#include "tessera/comm/group_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/base/units.h"
#include "tessera/comm/nccl.h"
#include "tessera/comm/thread.h"

namespace tessera::comm {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string reason_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  const auto open = text.find("[/");
  const auto close = text.find("] ", open == std::string::npos ? 0 : open);
  if (open != std::string::npos && close != std::string::npos) text.erase(open, close + 2 - open);
  return text;
}

bool Group::State::by_device(const at::Tensor& tensor) const {
  return on_device != nullptr && tensor.device() == options.device;
}

std::string Group::State::device_failure() const {
  constexpr const char* kReasons[] = {"", "deadline passed", "a connection failed",
                                      "another rank failed"};  // of c10d::ErrorType
  const auto error = on_device->getError();
  if (error == c10d::ErrorType::SUCCESS) return {};
  return fmt::format("NCCL: {}", kReasons[static_cast<size_t>(error)]);
}

void Group::State::check_device() const {
  const auto failure = device_failure();
  if (!failure.empty()) throw std::runtime_error(failure);
}

void Group::State::check() const {
  const auto failure = device_failure();
  if (failure.empty()) return;
  throw c10::DistError(fmt::format("rank {}, axis {}: an operation of this step failed: {}",
                                   run_rank(), options.name, failure),
                       nullptr);
}

Group::State::State(GroupOptions group_options, const GlooDevice& device,
                    const c10::intrusive_ptr<c10d::Store>& store)
    : options(std::move(group_options)) {
  const auto begin = Clock::now();
  try {
    options.roll_call->watch([this] { return others(); }, [&] { connect(device, store); });
  } catch (const std::exception& error) {
    throw c10::DistError(
        fmt::format("rank {}, axis {}: connecting {} ranks failed after {:.1f} s: {}", run_rank(),
                    options.name, size(), seconds_since(begin), reason_of(error)),
        nullptr);
  }
  queue = std::make_unique<Queue>("comm:" + options.name, options.timeout);
}

void Group::State::connect(const GlooDevice& device, const c10::intrusive_ptr<c10d::Store>& store) {
  const Deadline deadline(options.timeout);
  store->setTimeout(options.timeout);
  by_gloo(deadline, [&] {
    // The store's own deadline does not cover a server that is stopped.
    const auto made = within<c10::intrusive_ptr<c10d::Backend>>(
        options.timeout + std::chrono::seconds(1),
        [device, store, rank = options.rank, size = size(), timeout = options.timeout] {
          return make_gloo(device, store, rank, size, timeout);
        });
    if (!made) throw std::runtime_error("the store does not answer");
    gloo = *made;
  });
  exchange.emplace(gloo, options.ranks);
  if (options.transport.device_backend) {
    const auto apart = c10::make_intrusive<c10d::PrefixStore>("device", store);
    on_device = options.transport.device_backend(
        make_gloo(device, apart, options.rank, size(), options.timeout));
  } else if (options.device.is_cuda()) {
    on_device = make_nccl(options.name, c10::make_intrusive<c10d::PrefixStore>("nccl", store),
                          options.rank, size(), options.timeout);
  }
  if (options.transport.shared_memory) {
    memory = SharedMemory::make(options.rank, options.ranks, [&](const std::string& bytes) {
      return gather_bytes(bytes, deadline);
    });
  }
  announce({}, deadline);
  // So that a rank that drops the group at once does not hang up on one that is still connecting.
  gather_bytes({}, deadline);
}

std::vector<int> Group::State::others() const {
  auto ranks = options.ranks;
  ranks.erase(ranks.begin() + options.rank);
  return ranks;
}

/// The ranks of the run that the operation under way waits for, as far as is known.
std::vector<int> Group::State::awaited() const {
  if (memory == nullptr) {
    const int peer = exchange->awaited();
    return peer < 0 ? others() : std::vector<int>{options.ranks[peer]};
  }
  auto ranks = memory->furthest_behind();
  for (int& rank : ranks) rank = options.ranks[rank];
  return ranks;
}

void Group::State::run(const Call& call, const Deadline& deadline,
                       const std::function<void()>& body) {
  options.roll_call->watch([this] { return awaited(); },
                           [&] {
                             announce(call, deadline);
                             body();
                           });
}

void Group::State::announce(const Call& call, const Deadline& deadline) {
  memory != nullptr ? memory->begin(call) : exchange->compare_calls(call, deadline);
}

void Group::State::by_gloo(const Deadline& deadline, const std::function<void()>& body) const {
  using Why = MissingPeers::Why;
  try {
    body();
  } catch (const std::exception& error) {
    throw MissingPeers(deadline.passed() ? Why::late : Why::lost, others(), reason_of(error));
  }
}

Algorithm Group::State::algorithm(Operation operation, const at::Tensor& tensor,
                                  ReduceOp op) const {
  if (operation == Operation::all_reduce && options.transport.all_reduce) {
    return *options.transport.all_reduce;
  }
  return choose({.operation = operation,
                 .one_host = memory != nullptr,
                 .dtype = tensor.scalar_type(),
                 .op = op});
}

c10::DistError Group::State::error(const Call& call, double seconds,
                                   const std::string& reason) const {
  return c10::DistError(
      fmt::format("rank {}, axis {}: {} of {} failed after {:.1f} s: {}", run_rank(), options.name,
                  name_of(call.operation), format_bytes(call.bytes), seconds, reason),
      nullptr);
}

void Group::State::count(const Call& call) {
  const std::lock_guard lock(counters_mutex);
  auto& counter = counters.of(call.operation);
  ++counter.calls;
  counter.bytes += call.bytes;
  const bool sends = call.operation == Operation::broadcast && call.root == options.rank;
  if (sends) counters.sent_bytes += call.bytes;
}

Group::State::~State() {
  if (on_device == nullptr) return;
  // NCCL's destructor warns unless told how the run ended; a failed group cannot be finished.
  const bool failed = on_device->getError() != c10d::ErrorType::SUCCESS;
  try {
    failed ? on_device->abort() : on_device->shutdown();
  } catch (const c10::Error&) {
    // The GPU or its driver is gone; nothing is left to end.
  }
}

void Group::State::all_gather(std::span<const at::Tensor> outputs, const at::Tensor& input,
                              const Deadline& deadline) {
  if (algorithm(Operation::all_gather, input) == Algorithm::exchange) {
    return exchange->all_gather(outputs, input, deadline);
  }
  std::vector<void*> pointers;
  std::vector<int64_t> sizes;
  for (const auto& output : outputs) {
    pointers.push_back(output.data_ptr());
    sizes.push_back(static_cast<int64_t>(output.nbytes()));
  }
  memory->all_gather(pointers, sizes, input.const_data_ptr(), deadline);
}

void Group::State::all_to_all(std::span<const at::Tensor> outputs,
                              std::span<const at::Tensor> inputs, int64_t longest,
                              const Deadline& deadline) {
  if (algorithm(Operation::all_to_all, outputs[options.rank]) == Algorithm::exchange) {
    return exchange->all_to_all(outputs, inputs, deadline);
  }
  std::vector<std::span<std::byte>> to;
  SharedMemory::Parts from;
  for (size_t r = 0; r < outputs.size(); ++r) {
    to.emplace_back(static_cast<std::byte*>(outputs[r].data_ptr()), outputs[r].nbytes());
    from.emplace_back(static_cast<const std::byte*>(inputs[r].const_data_ptr()),
                      inputs[r].nbytes());
  }
  memory->all_to_all(to, from, longest, deadline);
}

std::vector<std::string> Group::State::gather_bytes(const std::string& bytes,
                                                    const Deadline& deadline) {
  const auto lengths = at::empty({size()}, at::kLong);
  const auto mine = lengths.narrow(0, options.rank, 1);
  mine.data_ptr<int64_t>()[0] = static_cast<int64_t>(bytes.size());
  all_gather(slices_of(lengths, size()), mine, deadline);

  std::vector<std::string> results;
  std::vector<at::Tensor> outputs;
  results.reserve(static_cast<size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    results.emplace_back(lengths.data_ptr<int64_t>()[r], '\0');
    outputs.push_back(
        at::from_blob(results.back().data(), {lengths.data_ptr<int64_t>()[r]}, at::kByte));
  }
  results[options.rank] = bytes;
  outputs[options.rank] =
      at::from_blob(results[options.rank].data(), {static_cast<int64_t>(bytes.size())}, at::kByte);
  all_gather(outputs, outputs[options.rank], deadline);
  return results;
}

}  // namespace tessera::comm
