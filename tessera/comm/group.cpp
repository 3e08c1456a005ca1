#include "tessera/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <cstring>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "tessera/base/units.h"
#include "tessera/comm/exchange.h"
#include "tessera/comm/nccl.h"
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

/// A flat tensor on the same memory, out of autograd's sight.
at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().view({-1}); }

void copy_flat(const at::Tensor& output, const at::Tensor& input) {
  if (output.data_ptr() == input.data_ptr() || input.numel() == 0) return;
  if (!output.is_cpu()) return static_cast<void>(flat(output).copy_(flat(input)));
  std::memcpy(output.data_ptr(), input.const_data_ptr(), input.nbytes());
}

int64_t bytes_of(std::span<const at::Tensor> tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

/// Of a collective over `whole`; `with` has what is special to the operation.
Call call_of(Operation operation, const at::Tensor& whole, Call with = {}) {
  with.operation = operation;
  with.bytes = static_cast<int64_t>(whole.nbytes());
  with.dtype = whole.scalar_type();
  return with;
}

}  // namespace

struct Group::State {
  ~State();
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
  void count(const Call& call);
  void announce(const Call& call, const Deadline& deadline) {
    memory != nullptr ? memory->begin(call) : exchange->compare_calls(call, deadline);
  }
  void check_gpu() const;
  void all_gather(std::span<const at::Tensor> outputs, const at::Tensor& input,
                  const Deadline& deadline);
  c10::DistError error(const Call& call, double seconds, const std::string& reason) const {
    return c10::DistError(fmt::format("rank {}, axis {}: {} of {} failed after {:.1f} s: {}",
                                      options.rank, options.name, name_of(call.operation),
                                      format_bytes(call.bytes), seconds, reason),
                          nullptr);
  }

  GroupOptions options;
  c10::intrusive_ptr<c10d::Backend> gloo;
  c10::intrusive_ptr<c10d::Backend> nccl;  // null without a GPU
  std::optional<Exchange> exchange;
  std::unique_ptr<SharedMemory> memory;
  std::mutex counters_mutex;
  Counters counters;
  std::unique_ptr<Queue> queue;  // last: destroyed first, before what its thread uses
};

struct Work::Started {
  std::shared_ptr<Group::State> group;
  Call call;
  Clock::time_point begin;
  std::future<void> done;            // of an operation on CPU tensors
  std::optional<NativeWork> on_gpu;  // of one on a GPU's

  /// A GPU's failure shows as soon as the host knows of it, be it another operation's.
  void wait() {
    if (on_gpu) {
      group->check_gpu();
      return on_gpu->wait();
    }
    // The operation watches its own deadline; the second one is for a backend that does not.
    const auto limit = group->options.timeout + std::chrono::seconds(5);
    if (done.wait_for(limit) != std::future_status::ready) {
      throw std::runtime_error("deadline passed");
    }
    done.get();
  }
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
  if (started_ == nullptr) return true;
  if (started_->on_gpu) return started_->on_gpu->done();
  return started_->done.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void Work::wait() {
  if (started_ == nullptr) return;
  const auto started = std::move(started_);
  auto& group = *started->group;
  const auto begin = Clock::now();
  std::optional<std::string> failure;
  try {
    started->wait();
  } catch (const std::exception& error) {
    failure = reason_of(error);
  }
  {
    const std::lock_guard lock(group.counters_mutex);
    group.counters.of(started->call.operation).wait_seconds += seconds_since(begin);
  }
  if (failure) throw group.error(started->call, seconds_since(started->begin), *failure);
}

void Group::State::check_gpu() const {
  constexpr const char* kReasons[] = {"", "deadline passed", "a connection failed",
                                      "another rank failed"};  // of c10d::ErrorType
  const auto error = nccl->getError();
  if (error == c10d::ErrorType::SUCCESS) return;
  throw std::runtime_error(fmt::format("NCCL: {}", kReasons[static_cast<size_t>(error)]));
}

Group::State::State(GroupOptions group_options, const GlooDevice& device,
                    const c10::intrusive_ptr<c10d::Store>& store)
    : options(std::move(group_options)) {
  const auto begin = Clock::now();
  try {
    store->setTimeout(options.timeout);
    gloo = make_gloo(device, store, options.rank, options.size, options.timeout);
    exchange.emplace(gloo);
    if (options.device.is_cuda()) {
      nccl = make_nccl(options.name, c10::make_intrusive<c10d::PrefixStore>("nccl", store),
                       options.rank, options.size, options.timeout);
    }
    const Deadline deadline(options.timeout);
    if (options.transport.shared_memory) {
      memory = SharedMemory::make(options.rank, options.size, [&](const std::string& bytes) {
        return gather_bytes(bytes, deadline);
      });
    }
    announce({}, deadline);
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

void Group::State::count(const Call& call) {
  const std::lock_guard lock(counters_mutex);
  auto& counter = counters.of(call.operation);
  ++counter.calls;
  counter.bytes += call.bytes;
}

Group::State::~State() {
  if (nccl == nullptr) return;
  // NCCL's destructor warns unless told how the run ended; a failed group cannot be finished.
  const bool failed = nccl->getError() != c10d::ErrorType::SUCCESS;
  try {
    failed ? nccl->abort() : nccl->shutdown();
  } catch (const c10::Error&) {
    // The GPU or its driver is gone; nothing is left to end.
  }
}

Work Group::start(const Call& call, Job job) const {
  state_->count(call);
  // The job must not own the group: the group's thread would destroy itself.
  auto run = [state = state_.get(), call, job = std::move(job)](const Deadline& deadline) {
    state->announce(call, deadline);
    job(*state, deadline);
  };
  return Work(
      std::make_unique<Work::Started>(Work::Started{.group = state_,
                                                    .call = call,
                                                    .begin = Clock::now(),
                                                    .done = state_->queue->push(std::move(run)),
                                                    .on_gpu = std::nullopt}));
}

Work Group::start_on_gpu(const Call& call, const NativeStart& native) const {
  state_->count(call);
  const auto begin = Clock::now();
  try {
    state_->check_gpu();
    return Work(std::make_unique<Work::Started>(
        Work::Started{.group = state_,
                      .call = call,
                      .begin = begin,
                      .done = {},
                      .on_gpu = native(NativeCollectives(state_->nccl))}));
  } catch (const std::exception& error) {
    throw state_->error(call, seconds_since(begin), reason_of(error));
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

void Group::check_tensor(const at::Tensor& tensor, Operation operation) const {
  TORCH_INTERNAL_ASSERT(tensor.defined() && tensor.is_contiguous(), name_of(operation),
                        ": expected a contiguous tensor");
  TORCH_INTERNAL_ASSERT(tensor.is_cpu() || size() == 1 || tensor.device() == state_->options.device,
                        name_of(operation), ": expected a tensor on the CPU or ",
                        state_->options.device, ", got one on ", tensor.device());
}

int64_t Group::buffer_bytes() const {
  if (size() == 1) return 0;
  return state_->exchange->staging_bytes() + (shares_memory() ? state_->memory->used_bytes() : 0);
}

Counters Group::counters() const {
  const std::lock_guard lock(state_->counters_mutex);
  return state_->counters;
}

void Group::abort() const {
  if (size() == 1) return;
  if (state_->memory != nullptr) state_->memory->give_up();
  if (state_->nccl) state_->nccl->abort();
  state_->gloo->abort();
}

Work Group::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  check_tensor(tensor, Operation::all_reduce);
  check_reducible(op, tensor.scalar_type());
  if (size() == 1) return {};
  const auto call = call_of(Operation::all_reduce, tensor, {.op = op});
  if (!tensor.is_cpu()) {
    return start_on_gpu(call, [&](const auto& gpu) { return gpu.all_reduce(flat(tensor), op); });
  }
  const auto job = [tensor = flat(tensor), op](State& state, const Deadline& deadline) {
    switch (state.algorithm(Operation::all_reduce, tensor)) {
      case Algorithm::native:
        return NativeCollectives(state.gloo).all_reduce(tensor, op).wait();
      case Algorithm::exchange:
        return state.exchange->all_reduce(tensor, op, deadline);
      case Algorithm::shared_memory:
        return state.memory->all_reduce(op, tensor.scalar_type(), tensor.data_ptr(), tensor.numel(),
                                        deadline);
    }
  };
  return start(call, job);
}

Work Group::broadcast(const at::Tensor& tensor, int root) const {
  check_tensor(tensor, Operation::broadcast);
  TORCH_INTERNAL_ASSERT(root >= 0 && root < size());
  if (size() == 1) return {};
  const auto call = call_of(Operation::broadcast, tensor, {.root = root});
  if (!tensor.is_cpu()) {
    return start_on_gpu(call, [&](const auto& gpu) { return gpu.broadcast(flat(tensor), root); });
  }
  const auto job = [tensor = flat(tensor), root](State& state, const Deadline& deadline) {
    if (state.algorithm(Operation::broadcast, tensor) == Algorithm::shared_memory) {
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      return state.memory->broadcast(tensor.data_ptr(), bytes, root, deadline);
    }
    NativeCollectives(state.gloo).broadcast(tensor, root).wait();
  };
  return start(call, job);
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input) const {
  check_tensor(output, Operation::all_gather);
  TORCH_INTERNAL_ASSERT(output.numel() == input.numel() * size());
  const auto whole = flat(output);
  if (size() == 1 || output.is_cpu()) return all_gather_uneven(slices_of(whole, size()), input);
  check_tensor(input, Operation::all_gather);
  return start_on_gpu(call_of(Operation::all_gather, output),
                      [&](const auto& gpu) { return gpu.all_gather(whole, flat(input)); });
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
  auto call = call_of(Operation::all_gather, input);
  call.bytes = bytes_of(parts);
  if (!input.is_cpu()) {
    return start_on_gpu(call,
                        [&](const auto& gpu) { return gpu.all_gather_uneven(parts, flat(input)); });
  }
  const auto job = [parts, input = flat(input)](State& state, const Deadline& deadline) {
    state.all_gather(parts, input, deadline);
  };
  return start(call, job);
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
  const auto call = call_of(Operation::reduce_scatter, input, {.op = op});
  if (!input.is_cpu()) {
    return start_on_gpu(
        call, [&](const auto& gpu) { return gpu.reduce_scatter(flat(output), flat(input), op); });
  }
  const auto job = [output = flat(output), input = flat(input), op](State& state,
                                                                    const Deadline& deadline) {
    if (state.algorithm(Operation::reduce_scatter, input) == Algorithm::shared_memory) {
      return state.memory->reduce_scatter(op, input.scalar_type(), output.data_ptr(),
                                          input.const_data_ptr(), output.numel(), deadline);
    }
    state.exchange->reduce_scatter(output, slices_of(input, state.options.size), op, deadline);
  };
  return start(call, job);
}

Work Group::scatter(const at::Tensor& output, const at::Tensor& input, int root) const {
  check_tensor(output, Operation::scatter);
  TORCH_INTERNAL_ASSERT(root >= 0 && root < size());
  if (rank() == root) {
    check_tensor(input, Operation::scatter);
    TORCH_INTERNAL_ASSERT(input.numel() == output.numel() * size() &&
                          input.scalar_type() == output.scalar_type());
  }
  if (size() == 1) {
    copy_flat(output, input);
    return {};
  }
  auto call = call_of(Operation::scatter, output, {.root = root});
  call.bytes *= size();
  std::vector<at::Tensor> parts;  // of the root alone
  if (rank() == root) parts = slices_of(flat(input), size());
  if (!output.is_cpu()) {
    return start_on_gpu(call,
                        [&](const auto& gpu) { return gpu.scatter(flat(output), parts, root); });
  }
  const auto job = [output = flat(output), parts, root](State& state, const Deadline& deadline) {
    if (state.algorithm(Operation::scatter, output) == Algorithm::shared_memory) {
      return state.memory->scatter(output.data_ptr(),
                                   parts.empty() ? nullptr : parts[0].const_data_ptr(),
                                   static_cast<int64_t>(output.nbytes()), root, deadline);
    }
    state.exchange->scatter(output, parts, root, deadline);
  };
  return start(call, job);
}

Work Group::all_to_all_single(const at::Tensor& output, const at::Tensor& input) const {
  check_tensor(output, Operation::all_to_all);
  check_tensor(input, Operation::all_to_all);
  TORCH_INTERNAL_ASSERT(output.nbytes() == input.nbytes() && input.numel() % size() == 0);
  if (size() == 1) {
    copy_flat(output, input);
    return {};
  }
  const auto call = call_of(Operation::all_to_all, input);
  if (!input.is_cpu()) {
    return start_on_gpu(call,
                        [&](const auto& gpu) { return gpu.all_to_all(flat(output), flat(input)); });
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
  return start(call, job);
}

void Group::barrier() const {
  if (size() == 1) return;
  start({.operation = Operation::barrier}, [](State& state, const Deadline& deadline) {
    state.gather_bytes({}, deadline);
  }).wait();
}

std::vector<std::string> Group::all_gather_bytes(const std::string& bytes) const {
  if (size() == 1) return {bytes};
  std::vector<std::string> results;
  start({.operation = Operation::objects, .bytes = static_cast<int64_t>(bytes.size())},
        [&](State& state, const Deadline& deadline) {
          results = state.gather_bytes(bytes, deadline);
        })
      .wait();
  return results;
}

}  // namespace tessera::comm
