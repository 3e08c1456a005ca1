#include "tessera/autograd/recompute.h"

#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <utility>

namespace tessera::autograd {
namespace {

thread_local TapeGuard* innermost_tape = nullptr;

/// Sizes without memory.
at::Tensor nothing_of(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(), options).expand(sizes);
}

}  // namespace

bool Tape::keeps(Operator by) {
  if (keeps_ != Keeps::to_attention) return keeps_ == Keeps::all;
  if (place_ == Place::behind_attention && by != Operator::sum) place_ = Place::beyond;
  if (place_ == Place::in_attention && by == Operator::product) place_ = Place::behind_attention;
  if (place_ == Place::before_attention && by == Operator::attention) place_ = Place::in_attention;
  return place_ != Place::beyond;
}

void Tape::put(Operator by, const std::vector<at::Tensor>& results) {
  ++num_operators_;
  if (drops_last_) {
    last_.clear();
    for (const auto& result : results) last_.push_back({result.sizes().vec(), result.options()});
  }
  if (!keeps(by)) return;
  ++num_kept_;
  for (const auto& result : results) {
    tensors_.push_back(result);
    versions_.push_back(result._version());
  }
}

std::vector<at::Tensor> Tape::finish() {
  for (size_t i = 0; i < versions_.size(); ++i) {
    TORCH_CHECK_VALUE(tensors_[i]._version() == versions_[i],
                      "checkpoint: expected the results of products to stay as they are where they "
                      "are kept, got one changed in place; set mode = full");
  }
  versions_.clear();
  if (drops_last_ && num_kept_ > 0 && num_kept_ == num_operators_) {
    --num_kept_;
    tensors_.resize(tensors_.size() - last_.size());
  }
  return std::exchange(tensors_, {});
}

void Tape::begin(std::vector<at::Tensor> kept) {
  tensors_ = std::move(kept);
  next_ = next_tensor_ = 0;
}

bool Tape::end() {
  tensors_.clear();
  return next_ == num_operators_;
}

std::optional<std::vector<at::Tensor>> Tape::take(size_t count) {
  TORCH_CHECK(next_ < num_operators_,
              "checkpoint: expected the recomputation to run the same products as the forward, got "
              "more; a checkpointed module must do the same in both");
  const auto current = next_++;
  if (current < num_kept_) {
    TORCH_CHECK(
        next_tensor_ + count <= tensors_.size(),
        "checkpoint: expected the recomputation to run the products of the forward in their "
        "order, got another; a checkpointed module must do the same in both");
    const auto first = tensors_.begin() + static_cast<std::ptrdiff_t>(next_tensor_);
    next_tensor_ += count;
    return std::vector<at::Tensor>{first, first + static_cast<std::ptrdiff_t>(count)};
  }
  if (!drops_last_ || next_ != num_operators_) return {};
  std::vector<at::Tensor> results;
  for (const auto& [sizes, options] : last_) results.push_back(nothing_of(sizes, options));
  return results;
}

TapeGuard::TapeGuard(Tape& tape, Use use)
    : tape_(tape), use_(use), outer_(std::exchange(innermost_tape, this)) {}

TapeGuard::~TapeGuard() { innermost_tape = outer_; }

bool TapeGuard::replays() {
  for (const auto* guard = innermost_tape; guard != nullptr; guard = guard->outer_) {
    if (guard->use_ == Use::replay) return true;
  }
  return false;
}

namespace {

bool has_values(const at::Tensor& tensor) {
  return !TapeGuard::replays() || tensor.numel() <= 1 ||
         tensor.storage().nbytes() > static_cast<size_t>(tensor.element_size());
}

struct SumWithoutValues : torch::autograd::Function<SumWithoutValues> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const at::Tensor&) {
    return nothing_of(x.sizes(), x.options());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], gradients[0]};
  }
};

}  // namespace

at::Tensor residual_sum(const at::Tensor& x, const at::Tensor& y) {
  return has_values(y) ? at::add(x, y) : SumWithoutValues::apply(x, y);
}

std::vector<at::Tensor> compute_once(Operator by, size_t count,
                                     c10::function_ref<std::vector<at::Tensor>()> compute) {
  std::optional<std::vector<at::Tensor>> found;
  auto* beyond = innermost_tape;
  for (; beyond != nullptr && !found; beyond = beyond->outer_) {
    if (beyond->use_ == TapeGuard::Use::replay) found = beyond->tape_.take(count);
  }
  auto results = found ? *std::move(found) : compute();
  for (auto* guard = innermost_tape; guard != beyond; guard = guard->outer_) {
    if (guard->use_ == TapeGuard::Use::record) guard->tape_.put(by, results);
  }
  return results;
}

}  // namespace tessera::autograd
