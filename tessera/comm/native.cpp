#include "tessera/comm/native.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
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

NativeWork plain(c10::intrusive_ptr<c10d::Work> work) { return NativeWork(std::move(work)); }

void multiply(const at::Tensor& sums, double factor) {
  if (sums.is_cpu()) {  // not ATen: on a thread of ours it would start threads of its own
    scale(sums.scalar_type(), sums.data_ptr(), sums.numel(), factor);
  } else {
    const at::NoGradGuard no_grad;
    sums.mul_(factor);
  }
}

/// The bits of floats as whole numbers in the floats' order, and back: those of negative floats
/// grow with their magnitude, so all but the sign are turned over.
at::Tensor turn_negatives(const at::Tensor& bits) {
  const bool wide = bits.scalar_type() == at::kLong;
  const int64_t all_but_the_sign = wide ? INT64_MAX : INT32_MAX;
  return bits.bitwise_xor(bits.bitwise_right_shift(wide ? 63 : 31).bitwise_and(all_but_the_sign));
}

/// Whole numbers in the order of `values`, NaN at the end where `op` looks. That end is a NaN's
/// bits again once turned back.
at::Tensor to_ordered(const at::Tensor& values, ReduceOp op) {
  const bool wide = values.scalar_type() == at::kDouble;
  const auto floats = wide ? values : values.to(at::kFloat);
  const int64_t largest = wide ? INT64_MAX : INT32_MAX;
  return turn_negatives(floats.view(wide ? at::kLong : at::kInt))
      .masked_fill_(floats.isnan(), op == ReduceOp::max ? largest : -largest - 1);
}

void from_ordered(const at::Tensor& ordered, const at::Tensor& values) {
  const bool wide = ordered.scalar_type() == at::kLong;
  values.copy_(turn_negatives(ordered).view(wide ? at::kDouble : at::kFloat));
}

}  // namespace

void NativeWork::wait() {
  work_->wait();
  if (finish_) finish_();
}

NativeWork NativeCollectives::reduced(const at::Tensor& output, const at::Tensor& input,
                                      ReduceOp op, const Start& start) const {
  auto to = output, from = input;
  const bool is_extreme = op == ReduceOp::max || op == ReduceOp::min;
  if (is_extreme && at::isFloatingType(input.scalar_type())) {
    const at::NoGradGuard no_grad;
    from = to_ordered(input, op);
    to = output.is_same(input) ? from : at::empty(output.sizes(), from.options());
    return NativeWork(start(to, from), [to, output] {
      const at::NoGradGuard guard;
      from_ordered(to, output);
    });
  }
  auto work = start(to, from);
  if (op != ReduceOp::avg) return plain(std::move(work));
  return NativeWork(std::move(work),
                    [output, factor = 1.0 / backend_->getSize()] { multiply(output, factor); });
}

NativeWork NativeCollectives::all_reduce(at::Tensor tensor, ReduceOp op) const {
  return reduced(tensor, tensor, op, [&](at::Tensor& in_place, at::Tensor&) {
    std::vector<at::Tensor> tensors{in_place};
    c10d::AllreduceOptions options;
    options.reduceOp = native_op(op);
    return backend_->allreduce(tensors, options);
  });
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
  return reduced(output, input, op, [&](at::Tensor& to, at::Tensor& from) {
    c10d::ReduceScatterOptions options;
    options.reduceOp = native_op(op);
    return backend_->_reduce_scatter_base(to, from, options);
  });
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

NativeWork NativeCollectives::all_to_all(at::Tensor output, at::Tensor input,
                                         std::vector<int64_t> received,
                                         std::vector<int64_t> sent) const {
  return plain(backend_->alltoall_base(output, input, received, sent));
}

}  // namespace tessera::comm
