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

at::Tensor nothing_of(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(), options).expand(sizes);
}

}  // namespace

at::Tensor without_values(const at::Tensor& tensor) {
  return nothing_of(tensor.sizes(), tensor.options());
}

void Tape::put(const std::vector<at::Tensor>& results) {
  for (const auto& result : results) {
    tensors_.push_back(result);
    versions_.push_back(result._version());
  }
}

std::vector<at::Tensor> Tape::take(size_t count) {
  TORCH_CHECK(next_ + count <= tensors_.size(),
              "checkpoint: expected the recomputation to run the same products as the forward, got "
              "more; a checkpointed module must do the same in both");
  const auto first = tensors_.begin() + static_cast<std::ptrdiff_t>(next_);
  next_ += count;
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

void Tape::check_unchanged() const {
  for (size_t i = 0; i < versions_.size(); ++i) {
    TORCH_CHECK_VALUE(tensors_[i]._version() == versions_[i],
                      "checkpoint: expected the results of products to stay as they are in "
                      "selective mode, got one changed in place; set mode = full");
  }
}

void LastResults::put(const std::vector<at::Tensor>& results) {
  ++num_operators_;
  last_.clear();
  for (const auto& result : results) last_.push_back({result.sizes().vec(), result.options()});
}

std::optional<std::vector<at::Tensor>> LastResults::take_if_last() {
  if (++next_ != num_operators_) return {};
  std::vector<at::Tensor> results;
  for (const auto& [sizes, options] : last_) results.push_back(nothing_of(sizes, options));
  return results;
}

TapeGuard::TapeGuard(Tape& tape, Use use)
    : on_(&tape), use_(use), outer_(std::exchange(innermost_tape, this)) {}

TapeGuard::TapeGuard(LastResults& last, Use use)
    : on_(&last), use_(use), outer_(std::exchange(innermost_tape, this)) {
  if (use == Use::replay) last.begin();
}

TapeGuard::~TapeGuard() { innermost_tape = outer_; }

bool TapeGuard::replays() {
  for (const auto* guard = innermost_tape; guard != nullptr; guard = guard->outer_) {
    if (guard->use_ == Use::replay) return true;
  }
  return false;
}

std::optional<std::vector<at::Tensor>> TapeGuard::known(size_t count) {
  if (use_ == Use::record) return {};
  if (auto* const* tape = std::get_if<Tape*>(&on_)) return (*tape)->take(count);
  return std::get<LastResults*>(on_)->take_if_last();
}

void TapeGuard::put(const std::vector<at::Tensor>& results) {
  if (use_ == Use::record) std::visit([&](auto* on) { on->put(results); }, on_);
}

namespace {

bool has_values(const at::Tensor& tensor) {
  return !TapeGuard::replays() || tensor.numel() <= 1 ||
         tensor.storage().nbytes() > static_cast<size_t>(tensor.element_size());
}

struct SumWithoutValues : torch::autograd::Function<SumWithoutValues> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x,
                            const at::Tensor&) {
    return at::full(x.sizes(), std::numeric_limits<double>::quiet_NaN(), x.options());
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

std::vector<at::Tensor> compute_once(size_t count,
                                     c10::function_ref<std::vector<at::Tensor>()> compute) {
  std::optional<std::vector<at::Tensor>> found;
  auto* beyond = innermost_tape;
  for (; beyond != nullptr && !found; beyond = beyond->outer_) found = beyond->known(count);
  auto results = found ? *std::move(found) : compute();
  for (auto* guard = innermost_tape; guard != beyond; guard = guard->outer_) guard->put(results);
  return results;
}

}  // namespace tessera::autograd
