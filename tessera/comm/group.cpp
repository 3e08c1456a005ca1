#include "tessera/comm/group.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "tessera/comm/group_state.h"

namespace tessera::comm {
namespace {

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

/// The call of a collective over `whole`; `with` has what is special to the operation.
Call call_of(Operation operation, const at::Tensor& whole, Call with = {}) {
  with.operation = operation;
  with.bytes = static_cast<int64_t>(whole.nbytes());
  with.dtype = whole.scalar_type();
  return with;
}

}  // namespace

struct Work::Started {
  std::shared_ptr<Group::State> group;
  Call call;
  Clock::time_point begin;
  std::future<void> done;               // of an operation on CPU tensors
  std::optional<NativeWork> on_device;  // of one on a GPU's

  /// A GPU's failure shows as soon as the host knows of it, be it another operation's.
  void wait() {
    if (on_device) {
      group->check_device();
      return on_device->wait();
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
  if (started_->on_device) return started_->on_device->done();
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

Work Group::start(const Call& call, Job job) const {
  state_->count(call);
  // The job must not own the group: the group's thread would destroy itself.
  auto run = [state = state_.get(), call, job = std::move(job)](const Deadline& deadline) {
    state->run(call, deadline, [&] { job(*state, deadline); });
  };
  return Work(
      std::make_unique<Work::Started>(Work::Started{.group = state_,
                                                    .call = call,
                                                    .begin = Clock::now(),
                                                    .done = state_->queue->push(std::move(run)),
                                                    .on_device = std::nullopt}));
}

Work Group::start_on_device(const Call& call, const NativeStart& native) const {
  state_->count(call);
  const auto begin = Clock::now();
  try {
    state_->check_device();
    return Work(std::make_unique<Work::Started>(
        Work::Started{.group = state_,
                      .call = call,
                      .begin = begin,
                      .done = {},
                      .on_device = native(NativeCollectives(state_->on_device))}));
  } catch (const std::exception& error) {
    throw state_->error(call, seconds_since(begin), reason_of(error));
  }
}

Group::Group(std::string name) : state_(std::make_shared<State>(std::move(name))) {}

Group::Group(const GroupOptions& options, const GlooDevice& device,
             const c10::intrusive_ptr<c10d::Store>& store)
    : state_(options.ranks.size() == 1 ? std::make_shared<State>(options.name)
                                       : std::make_shared<State>(options, device, store)) {}

const std::string& Group::name() const { return state_->options.name; }
const std::vector<mesh::AxisName>& Group::axes() const { return state_->options.axes; }
const std::string& Group::channel() const { return state_->options.channel; }
int Group::rank() const { return state_->options.rank; }
int Group::size() const { return state_->size(); }
std::chrono::milliseconds Group::timeout() const { return state_->options.timeout; }
bool Group::shares_memory() const { return state_->memory != nullptr; }
bool Group::runs_on_device() const { return state_->on_device != nullptr; }

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

void Group::check() const {
  if (state_->on_device != nullptr) state_->check();
}

void Group::abort() const {
  if (size() == 1) return;
  if (state_->memory != nullptr) state_->memory->give_up();
  if (state_->on_device) state_->on_device->abort();
  state_->gloo->abort();
}

Work Group::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  check_tensor(tensor, Operation::all_reduce);
  check_reducible(op, tensor.scalar_type());
  if (size() == 1) return {};
  const auto call = call_of(Operation::all_reduce, tensor, {.op = op});
  if (state_->by_device(tensor)) {
    return start_on_device(call,
                           [&](const auto& device) { return device.all_reduce(flat(tensor), op); });
  }
  const auto job = [tensor = flat(tensor), op](State& state, const Deadline& deadline) {
    switch (state.algorithm(Operation::all_reduce, tensor, op)) {
      case Algorithm::native:
        return state.by_gloo(deadline,
                             [&] { NativeCollectives(state.gloo).all_reduce(tensor, op).wait(); });
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
  if (state_->by_device(tensor)) {
    return start_on_device(
        call, [&](const auto& device) { return device.broadcast(flat(tensor), root); });
  }
  const auto job = [tensor = flat(tensor), root](State& state, const Deadline& deadline) {
    if (state.algorithm(Operation::broadcast, tensor) == Algorithm::shared_memory) {
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      return state.memory->broadcast(tensor.data_ptr(), bytes, root, deadline);
    }
    state.by_gloo(deadline, [&] { NativeCollectives(state.gloo).broadcast(tensor, root).wait(); });
  };
  return start(call, job);
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input) const {
  check_tensor(output, Operation::all_gather);
  TORCH_INTERNAL_ASSERT(output.numel() == input.numel() * size());
  const auto whole = flat(output);
  if (size() == 1 || !state_->by_device(output)) {
    return all_gather_uneven(slices_of(whole, size()), input);
  }
  check_tensor(input, Operation::all_gather);
  return start_on_device(call_of(Operation::all_gather, output),
                         [&](const auto& device) { return device.all_gather(whole, flat(input)); });
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
  if (state_->by_device(input)) {
    return start_on_device(
        call, [&](const auto& device) { return device.all_gather_uneven(parts, flat(input)); });
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
  if (state_->by_device(input)) {
    return start_on_device(call, [&](const auto& device) {
      return device.reduce_scatter(flat(output), flat(input), op);
    });
  }
  const auto job = [output = flat(output), input = flat(input), op](State& state,
                                                                    const Deadline& deadline) {
    if (state.algorithm(Operation::reduce_scatter, input) == Algorithm::shared_memory) {
      return state.memory->reduce_scatter(op, input.scalar_type(), output.data_ptr(),
                                          input.const_data_ptr(), output.numel(), deadline);
    }
    state.exchange->reduce_scatter(output, slices_of(input, state.size()), op, deadline);
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
  if (state_->by_device(output)) {
    return start_on_device(
        call, [&](const auto& device) { return device.scatter(flat(output), parts, root); });
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
  if (state_->by_device(input)) {
    return start_on_device(
        call, [&](const auto& device) { return device.all_to_all(flat(output), flat(input)); });
  }
  const auto job = [output = flat(output), input = flat(input)](State& state,
                                                                const Deadline& deadline) {
    const int parts = state.size();
    state.all_to_all(slices_of(output, parts), slices_of(input, parts),
                     static_cast<int64_t>(input.nbytes()) / parts, deadline);
  };
  return start(call, job);
}

Work Group::all_to_all_uneven(const at::Tensor& output, const at::Tensor& input,
                              std::span<const int64_t> rows) const {
  check_tensor(output, Operation::all_to_all);
  check_tensor(input, Operation::all_to_all);
  const int n = size();
  TORCH_INTERNAL_ASSERT(std::ssize(rows) == n * n && output.dtype() == input.dtype() &&
                        output.sizes().slice(1) == input.sizes().slice(1));
  std::vector<int64_t> received, sent;
  for (int r = 0; r < n; ++r) {
    received.push_back(rows[r * n + rank()]);
    sent.push_back(rows[rank() * n + r]);
  }
  const auto inputs = input.detach().split_with_sizes(sent);
  const auto outputs = output.detach().split_with_sizes(received);
  if (n == 1) {
    copy_flat(output, input);
    return {};
  }
  const int64_t row_bytes =
      c10::multiply_integers(input.sizes().slice(1)) * static_cast<int64_t>(input.element_size());
  auto call = call_of(Operation::all_to_all, input);
  call.bytes = std::reduce(rows.begin(), rows.end()) * row_bytes / n;
  if (state_->by_device(input)) {
    return start_on_device(call, [&](const auto& device) {
      return device.all_to_all(output.detach(), input.detach(), received, sent);
    });
  }
  const auto job = [outputs, inputs, longest = *std::ranges::max_element(rows) * row_bytes](
                       State& state, const Deadline& deadline) {
    state.all_to_all(outputs, inputs, longest, deadline);
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
