#include "tessera/autograd/recompute.h"

#include <c10/util/Exception.h>

#include <utility>

namespace tessera::autograd {
namespace {

thread_local TapeGuard* innermost_tape = nullptr;

}  // namespace

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

TapeGuard::TapeGuard(Tape& tape, Use use)
    : tape_(tape), use_(use), outer_(std::exchange(innermost_tape, this)) {}

TapeGuard::~TapeGuard() { innermost_tape = outer_; }

std::vector<at::Tensor> compute_once(size_t count,
                                     c10::function_ref<std::vector<at::Tensor>()> compute) {
  auto* replayed = innermost_tape;
  while (replayed != nullptr && replayed->use_ == TapeGuard::Use::record) {
    replayed = replayed->outer_;
  }
  auto results = replayed != nullptr ? replayed->tape_.take(count) : compute();
  for (auto* guard = innermost_tape; guard != replayed; guard = guard->outer_) {
    guard->tape_.put(results);
  }
  return results;
}

}  // namespace tessera::autograd
