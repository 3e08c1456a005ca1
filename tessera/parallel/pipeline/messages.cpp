#include "tessera/parallel/pipeline/messages.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace tessera::parallel {
namespace {

using schedule::Action;
using schedule::Kind;

/// Receives that wait on a channel at once: one on its way while another is used.
constexpr size_t kAhead = 2;

/// On a GPU one that waits holds some of its processors: the next one alone, from when the one before was taken.
constexpr size_t kAheadOnDevice = 1;

/// dtype, number of dimensions, sizes.
constexpr int64_t kHeaderSize = 10;

/// What an action sends on, if there is a stage to take it.
std::optional<Message> sent_by(const Action& action, int num_stages) {
  if (action.kind == Kind::forward) {
    if (action.stage + 1 == num_stages) return {};
    return Message{Message::Kind::output, action.stage + 1, action.micro_batch};
  }
  if (action.kind == Kind::backward_weight || action.stage == 0) return {};
  return Message{Message::Kind::gradient, action.stage - 1, action.micro_batch};
}

/// "the output of stage 0 for micro-batch 3"
std::string describe(const Message& message) {
  return message.kind == Message::Kind::output
             ? fmt::format("the output of stage {} for micro-batch {}", message.stage - 1,
                           message.micro_batch)
             : fmt::format("the gradient from stage {} for micro-batch {}", message.stage + 1,
                           message.micro_batch);
}

}  // namespace

Messages::Messages(const mesh::DeviceMesh& mesh, const std::vector<Actions>& ranks,
                   std::vector<int> rank_of_stage)
    : rank_of_stage_(std::move(rank_of_stage)),
      rank_(mesh.axis("pp").rank()),
      device_(mesh.device()) {
  // All ranks make their channels in one order, by sender and receiver.
  for (int sender = 0; sender < static_cast<int>(ranks.size()); ++sender) {
    std::set<int> receivers;
    for_each_sent(ranks, sender, [&](const Message&, int receiver) { receivers.insert(receiver); });
    for (const int receiver : receivers) {
      if (sender != rank_ && receiver != rank_) continue;
      const auto& group =
          mesh.axis("pp", {.only = {std::min(sender, receiver), std::max(sender, receiver)},
                           .channel = fmt::format("{}>{}", sender, receiver)});
      auto& channel = sender == rank_ ? to_[receiver] : from_[sender];
      channel.group = group;
      channel.sender = sender < receiver ? 0 : 1;
      // NCCL connects in a group's first operation, in which each of the two waits for the other one: not in an order of the
      // schedule's, in which a send would wait for its receiver.
      if (group.runs_on_device())
        group.broadcast(torch::zeros({1}, torch::device(device_)), channel.sender).wait();
    }
  }
}

/// visit(message, the rank it goes to) for all that `sender` sends to other ranks, in its order.
template <typename Visit>
void Messages::for_each_sent(const std::vector<Actions>& ranks, int sender,
                             const Visit& visit) const {
  for (const auto& action : ranks[static_cast<size_t>(sender)]) {
    const auto message = sent_by(action, static_cast<int>(rank_of_stage_.size()));
    if (message && rank_of(message->stage) != sender) visit(*message, rank_of(message->stage));
  }
}

Messages::Plan Messages::plan(const std::vector<Actions>& ranks) const {
  Plan plan;
  for (int sender = 0; sender < static_cast<int>(ranks.size()); ++sender) {
    for_each_sent(ranks, sender, [&](const Message& message, int receiver) {
      if (receiver == rank_) plan[sender].push_back(message);
    });
  }
  return plan;
}

void Messages::begin(const Plan& plan, bool remember) {
  remember_ = remember;
  for (const auto& [sender, messages] : plan) {
    auto& channel = from_.at(sender);
    channel.coming.assign(messages.begin(), messages.end());
    if (!channel.group.runs_on_device()) post(channel, kAhead);
  }
}

/// Receives whose shape is known from the run before, until `count` wait.
void Messages::post(Channel& channel, size_t count) {
  while (remember_ && channel.ahead.size() < std::min(count, channel.coming.size())) {
    const auto shape = shapes_.find(channel.coming[channel.ahead.size()]);
    if (shape == shapes_.end()) return;
    auto tensor = at::empty(shape->second.sizes, torch::dtype(shape->second.dtype).device(device_));
    auto work = channel.group.broadcast(tensor, channel.sender);
    channel.ahead.push_back({std::move(tensor), std::move(work)});
  }
}

/// The channel's next message.
torch::Tensor Messages::receive(Channel& channel) {
  torch::Tensor tensor;
  post(channel, 1);
  if (!channel.ahead.empty()) {
    auto posted = std::move(channel.ahead.front());
    channel.ahead.pop_front();
    posted.work.wait();
    tensor = std::move(posted.tensor);
  } else {
    const auto header = torch::empty({kHeaderSize}, torch::kInt64);
    channel.group.broadcast(header, channel.sender).wait();
    const auto* values = header.const_data_ptr<int64_t>();
    const Shape shape{{values + 2, values + 2 + values[1]}, static_cast<torch::Dtype>(values[0])};
    if (remember_) shapes_[channel.coming.front()] = shape;
    tensor = at::empty(shape.sizes, torch::dtype(shape.dtype).device(device_));
    channel.group.broadcast(tensor, channel.sender).wait();
  }
  channel.coming.pop_front();
  post(channel, channel.group.runs_on_device() ? kAheadOnDevice : kAhead);
  return tensor;
}

torch::Tensor Messages::take(const Message& message) {
  auto found = arrived_.find(message);
  if (found == arrived_.end()) {
    const int other = message.kind == Message::Kind::output ? message.stage - 1 : message.stage + 1;
    auto& channel = from_.at(rank_of(other));
    while (found == arrived_.end()) {
      const auto next = channel.coming.front();
      arrived_.emplace(next, receive(channel));
      found = arrived_.find(message);
    }
  }
  auto tensor = std::move(found->second);
  arrived_.erase(found);
  return tensor;
}

void Messages::send(const Message& message, const torch::Tensor& tensor) {
  while (!sends_.empty() && sends_.front().done()) {
    sends_.front().wait();  // for its error
    sends_.pop_front();
  }
  const int receiver = rank_of(message.stage);
  if (receiver == rank_) {
    arrived_.emplace(message, tensor);
    return;
  }
  auto& channel = to_.at(receiver);
  const Shape shape{tensor.sizes().vec(), tensor.scalar_type()};
  const auto told = shapes_.find(message);
  if (!remember_ || told == shapes_.end()) {
    TORCH_CHECK_VALUE(tensor.dim() + 2 <= kHeaderSize, describe(message), ": expected at most ",
                      kHeaderSize - 2, " dimensions, got ", tensor.dim());
    const auto header = torch::zeros({kHeaderSize}, torch::kInt64);
    auto* values = header.mutable_data_ptr<int64_t>();
    values[0] = static_cast<int64_t>(tensor.scalar_type());
    values[1] = tensor.dim();
    std::ranges::copy(tensor.sizes(), values + 2);
    sends_.push_back(channel.group.broadcast(header, channel.sender));
    if (remember_) shapes_[message] = shape;
  } else {
    TORCH_CHECK_VALUE(told->second == shape, describe(message), ": expected ",
                      at::IntArrayRef(told->second.sizes), " ", told->second.dtype,
                      " as in the first step, got ", tensor.sizes(), " ", tensor.scalar_type());
  }
  sends_.push_back(channel.group.broadcast(tensor.contiguous(), channel.sender));
}

void Messages::abort() {
  for (const auto* channels : {&from_, &to_}) {
    for (const auto& [rank, channel] : *channels) channel.group.abort();
  }
}

void Messages::finish() {
  for (auto& work : sends_) work.wait();
  sends_.clear();
}

}  // namespace tessera::parallel
