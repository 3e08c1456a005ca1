#include "tessera/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <cstring>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>

#include "tessera/base/units.h"
#include "tessera/comm/exchange.h"
#include "tessera/comm/queue.h"
#include "tessera/comm/shared_memory.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// First line of a backend's message, without the source position that Gloo puts in front.
std::string reason_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  const auto open = text.find("[/");
  const auto close = text.find("] ", open == std::string::npos ? 0 : open);
  if (open != std::string::npos && close != std::string::npos) text.erase(open, close + 2 - open);
  return text;
}

c10d::ReduceOp native_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return c10d::ReduceOp::SUM;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
  }
  TORCH_INTERNAL_ASSERT(false);
}

void check_tensor(const at::Tensor& tensor, Operation operation) {
  TORCH_INTERNAL_ASSERT(tensor.defined() && tensor.is_cpu() && tensor.is_contiguous(),
                        name_of(operation), ": expected a contiguous CPU tensor");
}

/// A flat tensor on the same memory, out of autograd's sight.
at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().view({-1}); }

void copy_flat(const at::Tensor& output, const at::Tensor& input) {
  if (output.data_ptr() != input.data_ptr() && input.numel() > 0) {
    std::memcpy(output.data_ptr(), input.const_data_ptr(), input.nbytes());
  }
}

int64_t bytes_of(std::span<const at::Tensor> tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace

struct Group::State {
  State(GroupOptions group_options, const GlooDevice& device,
        const c10::intrusive_ptr<c10d::Store>& store);
  explicit State(std::string name) { options.name = std::move(name); }

  Algorithm algorithm(Operation operation, const at::Tensor& tensor) const {
    if (operation == Operation::all_reduce && options.transport.all_reduce) {
      return *options.transport.all_reduce;
    }
    return choose(
        {.operation = operation, .one_host = memory != nullptr, .dtype = tensor.scalar_type()});
  }
  std::vector<std::string> gather_bytes(const std::string& bytes, const Deadline& deadline);
  void native_all_reduce(at::Tensor tensor, ReduceOp op, const Deadline& deadline);
  void all_gather(std::span<const at::Tensor> outputs, const at::Tensor& input,
                  const Deadline& deadline);
  c10::DistError error(Operation operation, int64_t bytes, double seconds,
                       const std::string& reason) const {
    return c10::DistError(
        fmt::format("rank {}, axis {}: {} of {} failed after {:.1f} s: {}", options.rank,
                    options.name, name_of(operation), format_bytes(bytes), seconds, reason),
        nullptr);
  }

  GroupOptions options;
  c10::intrusive_ptr<c10d::Backend> backend;
  std::optional<Exchange> exchange;
  std::unique_ptr<SharedMemory> memory;
  std::mutex counters_mutex;
  Counters counters;
  std::unique_ptr<Queue> queue;  // last: destroyed first, before what its thread uses
};

struct Work::Started {
  std::shared_ptr<Group::State> group;
  Operation operation;
  int64_t bytes;
  Clock::time_point begin;
  std::future<void> done;
};

Work::Work() = default;
Work::Work(Work&& other) noexcept = default;
Work::Work(std::unique_ptr<Started> started) : started_(std::move(started)) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work dropped(std::move(*this));
    started_ = std::move(other.started_);
  }
  return *this;
}

Work::~Work() {
  if (started_ == nullptr) return;
  try {
    wait();
  } catch (const c10::Error&) {
    // The group repeats it at its next operation.
  }
}

bool Work::done() const {
  return started_ == nullptr ||
         started_->done.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void Work::wait() {
  if (started_ == nullptr) return;
  const auto started = std::move(started_);
  auto& group = *started->group;
  const auto begin = Clock::now();
  // The operation watches its own deadline; the second one is for a backend that does not.
  const auto status = started->done.wait_for(group.options.timeout + std::chrono::seconds(5));
  {
    const std::lock_guard lock(group.counters_mutex);
    group.counters.of(started->operation).wait_seconds += seconds_since(begin);
  }
  const auto failed = [&](const std::string& reason) {
    return group.error(started->operation, started->bytes, seconds_since(started->begin), reason);
  };
  if (status != std::future_status::ready) throw failed("deadline passed");
  try {
    started->done.get();
  } catch (const std::exception& error) {
    throw failed(reason_of(error));
  }
}

Group::State::State(GroupOptions group_options, const GlooDevice& device,
                    const c10::intrusive_ptr<c10d::Store>& store)
    : options(std::move(group_options)) {
  const auto begin = Clock::now();
  try {
    store->setTimeout(options.timeout);
    backend = make_gloo(device, store, options.rank, options.size, options.timeout);
    exchange.emplace(backend);
    const Deadline deadline(options.timeout);
    if (options.transport.shared_memory) {
      memory = SharedMemory::make(options.rank, options.size, [&](const std::string& bytes) {
        return gather_bytes(bytes, deadline);
      });
    }
    // So that a rank that drops the group at once does not hang up on one that is still connecting.
    gather_bytes({}, deadline);
  } catch (const std::exception& error) {
    throw c10::DistError(
        fmt::format("rank {}, axis {}: connecting {} ranks failed after {:.1f} s: {}", options.rank,
                    options.name, options.size, seconds_since(begin), reason_of(error)),
        nullptr);
  }
  queue = std::make_unique<Queue>("comm:" + options.name, options.timeout);
}

Work Group::start(Operation operation, int64_t bytes, Job job) const {
  {
    const std::lock_guard lock(state_->counters_mutex);
    auto& counter = state_->counters.of(operation);
    ++counter.calls;
    counter.bytes += bytes;
  }
  // The job must not own the group: the group's thread would destroy itself.
  auto run = [state = state_.get(), job = std::move(job)](const Deadline& deadline) {
    job(*state, deadline);
  };
  return Work(
      std::make_unique<Work::Started>(Work::Started{.group = state_,
                                                    .operation = operation,
                                                    .bytes = bytes,
                                                    .begin = Clock::now(),
                                                    .done = state_->queue->push(std::move(run))}));
}

void Group::State::native_all_reduce(at::Tensor tensor, ReduceOp op, const Deadline& deadline) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions native;
  native.reduceOp = native_op(op);
  native.timeout = deadline.left();
  backend->allreduce(tensors, native)->wait(deadline.left());
  if (op == ReduceOp::avg) {
    scale(tensor.scalar_type(), tensor.data_ptr(), tensor.numel(), 1.0 / options.size);
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

std::vector<std::string> Group::State::gather_bytes(const std::string& bytes,
                                                    const Deadline& deadline) {
  const auto lengths = at::empty({options.size}, at::kLong);
  const auto mine = lengths.narrow(0, options.rank, 1);
  mine.data_ptr<int64_t>()[0] = static_cast<int64_t>(bytes.size());
  all_gather(slices_of(lengths, options.size), mine, deadline);

  std::vector<std::string> results;
  std::vector<at::Tensor> outputs;
  results.reserve(static_cast<size_t>(options.size));
  for (int r = 0; r < options.size; ++r) {
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

Group::Group(std::string name) : state_(std::make_shared<State>(std::move(name))) {}

Group::Group(const GroupOptions& options, const GlooDevice& device,
             const c10::intrusive_ptr<c10d::Store>& store)
    : state_(options.size == 1 ? std::make_shared<State>(options.name)
                               : std::make_shared<State>(options, device, store)) {}

const std::string& Group::name() const { return state_->options.name; }
int Group::rank() const { return state_->options.rank; }
int Group::size() const { return state_->options.size; }
std::chrono::milliseconds Group::timeout() const { return state_->options.timeout; }
bool Group::shares_memory() const { return state_->memory != nullptr; }

Counters Group::counters() const {
  const std::lock_guard lock(state_->counters_mutex);
  return state_->counters;
}

Work Group::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  check_tensor(tensor, Operation::all_reduce);
  check_reducible(op, tensor.scalar_type());
  if (size() == 1) return {};
  const auto job = [tensor = flat(tensor), op](State& state, const Deadline& deadline) {
    switch (state.algorithm(Operation::all_reduce, tensor)) {
      case Algorithm::native:
        return state.native_all_reduce(tensor, op, deadline);
      case Algorithm::exchange:
        return state.exchange->all_reduce(tensor, op, deadline);
      case Algorithm::shared_memory:
        return state.memory->all_reduce(op, tensor.scalar_type(), tensor.data_ptr(), tensor.numel(),
                                        deadline);
    }
  };
  return start(Operation::all_reduce, static_cast<int64_t>(tensor.nbytes()), job);
}

Work Group::broadcast(const at::Tensor& tensor, int root) const {
  check_tensor(tensor, Operation::broadcast);
  TORCH_INTERNAL_ASSERT(root >= 0 && root < size());
  if (size() == 1) return {};
  const auto job = [tensor = flat(tensor), root](State& state, const Deadline& deadline) {
    if (state.algorithm(Operation::broadcast, tensor) == Algorithm::shared_memory) {
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      return state.memory->broadcast(tensor.data_ptr(), bytes, root, deadline);
    }
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = deadline.left();
    state.backend->broadcast(tensors, options)->wait(deadline.left());
  };
  return start(Operation::broadcast, static_cast<int64_t>(tensor.nbytes()), job);
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input) const {
  check_tensor(output, Operation::all_gather);
  TORCH_INTERNAL_ASSERT(output.numel() == input.numel() * size());
  const auto whole = flat(output);
  return all_gather_uneven(slices_of(whole, size()), input);
}

Work Group::all_gather_uneven(std::span<const at::Tensor> outputs, const at::Tensor& input) const {
  check_tensor(input, Operation::all_gather);
  TORCH_INTERNAL_ASSERT(static_cast<int>(outputs.size()) == size() &&
                        outputs[rank()].nbytes() == input.nbytes());
  if (size() == 1) {
    copy_flat(outputs[0], input);
    return {};
  }
  std::vector<at::Tensor> parts;
  for (const auto& output : outputs) {
    check_tensor(output, Operation::all_gather);
    TORCH_INTERNAL_ASSERT(output.scalar_type() == input.scalar_type());
    parts.push_back(flat(output));
  }
  const int64_t bytes = bytes_of(parts);
  const auto job = [parts, input = flat(input)](State& state, const Deadline& deadline) {
    state.all_gather(parts, input, deadline);
  };
  return start(Operation::all_gather, bytes, job);
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const {
  check_tensor(output, Operation::reduce_scatter);
  check_tensor(input, Operation::reduce_scatter);
  check_reducible(op, input.scalar_type());
  TORCH_INTERNAL_ASSERT(input.numel() == output.numel() * size() &&
                        input.scalar_type() == output.scalar_type());
  if (size() == 1) {
    copy_flat(output, input);
    return {};
  }
  const auto job = [output = flat(output), input = flat(input), op](State& state,
                                                                    const Deadline& deadline) {
    if (state.algorithm(Operation::reduce_scatter, input) == Algorithm::shared_memory) {
      return state.memory->reduce_scatter(op, input.scalar_type(), output.data_ptr(),
                                          input.const_data_ptr(), output.numel(), deadline);
    }
    state.exchange->reduce_scatter(output, slices_of(input, state.options.size), op, deadline);
  };
  return start(Operation::reduce_scatter, static_cast<int64_t>(input.nbytes()), job);
}

Work Group::all_to_all_single(const at::Tensor& output, const at::Tensor& input) const {
  check_tensor(output, Operation::all_to_all);
  check_tensor(input, Operation::all_to_all);
  TORCH_INTERNAL_ASSERT(output.nbytes() == input.nbytes() && input.numel() % size() == 0);
  if (size() == 1) {
    copy_flat(output, input);
    return {};
  }
  const auto job = [output = flat(output), input = flat(input)](State& state,
                                                                const Deadline& deadline) {
    const int parts = state.options.size;
    if (state.algorithm(Operation::all_to_all, input) == Algorithm::shared_memory) {
      return state.memory->all_to_all(output.data_ptr(), input.const_data_ptr(),
                                      static_cast<int64_t>(input.nbytes()) / parts, deadline);
    }
    state.exchange->all_to_all(slices_of(output, parts), slices_of(input, parts), deadline);
  };
  return start(Operation::all_to_all, static_cast<int64_t>(input.nbytes()), job);
}

void Group::barrier() const {
  if (size() == 1) return;
  start(Operation::barrier, 0, [](State& state, const Deadline& deadline) {
    state.gather_bytes({}, deadline);
  }).wait();
}

std::vector<std::string> Group::all_gather_bytes(const std::string& bytes) const {
  if (size() == 1) return {bytes};
  std::vector<std::string> results;
  start(Operation::objects, static_cast<int64_t>(bytes.size()),
        [&](State& state, const Deadline& deadline) {
          results = state.gather_bytes(bytes, deadline);
        })
      .wait();
  return results;
}

}  // namespace tessera::comm
