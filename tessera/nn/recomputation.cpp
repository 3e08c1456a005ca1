#include "tessera/nn/recomputation.h"

#include <utility>

namespace tessera::nn {
namespace {

thread_local Recomputation* innermost = nullptr;

}  // namespace

Recomputation::Recomputation(Forward forward)
    : forward_(forward), outer_(std::exchange(innermost, this)) {}

Recomputation::~Recomputation() {
  innermost = outer_;
  if (outer_ != nullptr) outer_->num_calls_ += num_calls_;
}

bool Recomputation::runs_again() {
  return innermost != nullptr && innermost->forward_ == Forward::first;
}

bool Recomputation::ran_before() {
  for (const auto* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (scope->forward_ == Forward::second) return true;
  }
  return false;
}

void Recomputation::count_call() {
  if (innermost != nullptr) ++innermost->num_calls_;
}

}  // namespace tessera::nn
