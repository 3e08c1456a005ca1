#include "tessera/comm/exchange.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/roll_call.h"

namespace tessera::comm {
namespace {

constexpr int64_t kStagingBytes = int64_t{8} << 20;
constexpr int kComparedCalls = 64;

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  if (to.data_ptr() == from.data_ptr() || from.numel() == 0) return;
  std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
}

/// `length` elements from `begin`, less where the tensor ends.
at::Tensor piece(const at::Tensor& tensor, int64_t begin, int64_t length) {
  const int64_t start = std::min(begin, tensor.numel());
  return tensor.narrow(0, start, std::min(length, tensor.numel() - start));
}

}  // namespace

std::vector<at::Tensor> slices_of(const at::Tensor& tensor, int parts) {
  const int64_t length = (tensor.numel() + parts - 1) / parts;
  std::vector<at::Tensor> slices;
  for (int r = 0; r < parts; ++r) slices.push_back(piece(tensor, r * length, length));
  return slices;
}

void Exchange::compare_calls(const Call& call, const Deadline& deadline) {
  if (calls_ == kComparedCalls) return;
  ++calls_;
  const auto code = call.code();
  const auto codes = at::empty({size(), 2}, at::kLong);
  auto* all = codes.mutable_data_ptr<int64_t>();
  all[2 * rank()] = static_cast<int64_t>(code.kind);
  all[2 * rank() + 1] = static_cast<int64_t>(code.bytes);
  const auto slices = slices_of(codes.view({-1}), size());
  all_gather(slices, slices[rank()], deadline);
  for (int r = 0; r < size(); ++r) {
    check_same_call(ranks_[rank()], call, ranks_[r],
                    {.kind = static_cast<uint64_t>(all[2 * r]),
                     .bytes = static_cast<uint64_t>(all[2 * r + 1])});
  }
}

void Exchange::all_to_all(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs,
                          const Deadline& deadline) {
  struct Message {
    int peer;
    c10::intrusive_ptr<c10d::Work> work;
  };
  std::vector<Message> messages;
  tag_ = (tag_ + 1) & 0xffffff;
  for (int step = 1; step < size(); ++step) {  // not all ranks at the same peer at once
    const int from = (rank() + size() - step) % size();
    if (outputs[from].numel() == 0) continue;
    std::vector<at::Tensor> tensors{outputs[from]};
    messages.push_back({from, backend_->recv(tensors, from, tag_)});
  }
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size();
    if (inputs[to].numel() == 0) continue;
    std::vector<at::Tensor> tensors{inputs[to]};
    messages.push_back({to, backend_->send(tensors, to, tag_)});
  }
  copy_bytes(outputs[rank()], inputs[rank()]);
  for (auto& message : messages) {
    awaited_ = message.peer;
    try {
      message.work->wait(deadline.left());
    } catch (const std::exception& error) {
      const int peer = ranks_[message.peer];
      if (deadline.passed()) {
        throw MissingPeers(MissingPeers::Why::late, {peer}, did_not_come({peer}));
      }
      throw MissingPeers(MissingPeers::Why::lost, {peer},
                         fmt::format("rank {}: {}", peer, error.what()));
    }
  }
  awaited_ = -1;
}

void Exchange::all_gather(std::span<const at::Tensor> outputs, const at::Tensor& input,
                          const Deadline& deadline) {
  const std::vector<at::Tensor> inputs(static_cast<size_t>(size()), input);
  all_to_all(outputs, inputs, deadline);
}

void Exchange::scatter(const at::Tensor& output, std::span<const at::Tensor> inputs, int root,
                       const Deadline& deadline) {
  const std::vector<at::Tensor> nothing(static_cast<size_t>(size()), output.narrow(0, 0, 0));
  auto outputs = nothing;
  outputs[root] = output;
  all_to_all(outputs, rank() == root ? inputs : nothing, deadline);
}

void Exchange::reduce_scatter(const at::Tensor& output, std::span<const at::Tensor> inputs,
                              ReduceOp op, const Deadline& deadline) {
  int64_t longest = 0;
  for (const auto& input : inputs) longest = std::max(longest, input.numel());
  const int64_t element_bytes = static_cast<int64_t>(output.element_size());
  const int64_t staged = std::max<int64_t>(1, kStagingBytes / (element_bytes * size()));
  const int64_t length = std::min(staged, longest);
  const auto staging = at::empty({size() * std::min(length, output.numel())}, output.options());
  staging_bytes_ = std::max<int64_t>(staging_bytes_, static_cast<int64_t>(staging.nbytes()));

  for (int64_t begin = 0; begin < longest; begin += length) {
    const auto mine = piece(inputs[rank()], begin, length);
    std::vector<at::Tensor> sends, receives;
    std::vector<const void*> parts;
    for (int r = 0; r < size(); ++r) {
      sends.push_back(piece(inputs[r], begin, length));
      receives.push_back(r == rank() ? mine : staging.narrow(0, r * mine.numel(), mine.numel()));
      parts.push_back(receives.back().const_data_ptr());
    }
    all_to_all(receives, sends, deadline);
    reduce_parts(op, output.scalar_type(), parts, piece(output, begin, length).data_ptr(),
                 mine.numel());
  }
}

void Exchange::all_reduce(const at::Tensor& tensor, ReduceOp op, const Deadline& deadline) {
  const auto slices = slices_of(tensor, size());
  reduce_scatter(slices[rank()], slices, op, deadline);
  all_gather(slices, slices[rank()], deadline);
}

}  // namespace tessera::comm
