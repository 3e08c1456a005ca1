#include "tessera/comm/native.h"

#include <ATen/core/grad_mode.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace tessera::comm {
namespace {

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

NativeWork plain(c10::intrusive_ptr<c10d::Work> work) { return {std::move(work), {}, 1}; }

}  // namespace

void NativeWork::wait() {
  work_->wait();
  if (factor_ == 1) return;
  if (sums_.is_cpu()) {  // not ATen: on a thread of ours it would start threads of its own
    scale(sums_.scalar_type(), sums_.data_ptr(), sums_.numel(), factor_);
  } else {
    const at::NoGradGuard no_grad;
    sums_.mul_(factor_);
  }
}

NativeWork NativeCollectives::reduced(c10::intrusive_ptr<c10d::Work> work, const at::Tensor& sums,
                                      ReduceOp op) const {
  return {std::move(work), sums, op == ReduceOp::avg ? 1.0 / backend_->getSize() : 1};
}

NativeWork NativeCollectives::all_reduce(at::Tensor tensor, ReduceOp op) const {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = native_op(op);
  return reduced(backend_->allreduce(tensors, options), tensor, op);
}

NativeWork NativeCollectives::broadcast(at::Tensor tensor, int root) const {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return plain(backend_->broadcast(tensors, options));
}

NativeWork NativeCollectives::all_gather(at::Tensor output, at::Tensor input) const {
  return plain(backend_->_allgather_base(output, input));
}

NativeWork NativeCollectives::all_gather_uneven(std::span<const at::Tensor> outputs,
                                                const at::Tensor& input) const {
  std::vector<std::vector<at::Tensor>> lists{{outputs.begin(), outputs.end()}};
  std::vector<at::Tensor> inputs{input};
  return plain(backend_->allgather(lists, inputs));
}

NativeWork NativeCollectives::reduce_scatter(at::Tensor output, at::Tensor input,
                                             ReduceOp op) const {
  c10d::ReduceScatterOptions options;
  options.reduceOp = native_op(op);
  return reduced(backend_->_reduce_scatter_base(output, input, options), output, op);
}

NativeWork NativeCollectives::scatter(const at::Tensor& output, std::span<const at::Tensor> inputs,
                                      int root) const {
  std::vector<at::Tensor> outputs{output};
  std::vector<std::vector<at::Tensor>> lists;  // of the root alone
  if (backend_->getRank() == root) lists.emplace_back(inputs.begin(), inputs.end());
  c10d::ScatterOptions options;
  options.rootRank = root;
  return plain(backend_->scatter(outputs, lists, options));
}

NativeWork NativeCollectives::all_to_all(at::Tensor output, at::Tensor input) const {
  std::vector<int64_t> even;
  return plain(backend_->alltoall_base(output, input, even, even));
}

}  // namespace tessera::comm
