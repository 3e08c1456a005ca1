// A unit's gradients: summed over the ranks that share its buffers, and kept until the step.
#include <algorithm>
#include <utility>

#include "tessera/parallel/data/unit.h"

namespace tessera::parallel {

void Unit::begin_gradient() {
  if (replicated_) set_sums_apart();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    auto& buffer = buffers_[i];
    buffer.begin_gradient();  // what a user dropped is zero
    // A kept gradient that was reduced makes room: the next backward's is reduced on its own.
    if (reduced_ && buffer.trained() && buffer.plan().gradient_slice_in_gradient) {
      buffer.fill_gradient();
      earlier_[i] = buffer.own_part(buffer.gradient).clone();
      buffer.clear_gradient();
    }
    if (adds_in_place_) buffer.add_to_stored_gradient();
  }
  reduced_ = false;
}

void Unit::fill_gradient() {
  for (auto& buffer : buffers_) buffer.fill_gradient();
}

void Unit::start_reduce() {
  begin_gradient();
  fill_gradient();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    auto& buffer = buffers_[i];
    if (!buffer.trained()) continue;
    buffer.note_arrivals();
    const auto& whole = buffer.gradient.tensor();
    const auto& axes = axes_.of(buffer);
    const bool alone = buffer.plan().num_slices == 1;
    if (fp8_communication_ && (alone ? axes.all : axes.reduce).size() > 1) {
      fp8_sums_[i].emplace(alone ? axes.all : axes.reduce, whole,
                           alone ? SumResult::all : SumResult::own_part);
      straight_[i] = false;
      continue;
    }
    if (alone) {
      reduces_.push_back(axes.all.all_reduce(whole));
      continue;
    }
    const auto& slice = buffer.gradient_slice.tensor();
    // The first sum of a step goes straight to its place.
    const bool straight = slice.defined() && !buffer.gradient_slice.allocated() &&
                          !buffer.gradient_is_away() && slice.dtype() == whole.dtype() &&
                          slice.device() == whole.device() && !buffer.options().offloaded;
    if (straight) buffer.gradient_slice.allocate();
    reduces_.push_back(
        axes.reduce.reduce_scatter(straight ? slice : buffer.own_part(buffer.gradient), whole));
    straight_[i] = straight;
  }
  reducing_ = true;
}

bool Unit::reduce_done() const {
  return std::ranges::all_of(reduces_, [](const auto& work) { return work.done(); });
}

void Unit::finish_reduce(double divide_factor) {
  if (!reducing_) return;
  wait(reduces_, times_.reduce_wait_seconds);
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (fp8_sums_[i]) fp8_sums_[i]->finish();
    fp8_sums_[i].reset();
    if (buffers_[i].trained()) finish_sum(i, 1 / divide_factor);
  }
  reducing_ = false;
  // A rank alone has no sum to keep apart from the next backward's.
  reduced_ = axes_.all.size() > 1 || axes_.experts.all.size() > 1 || divide_factor != 1;
  adds_in_place_ = !reduced_;
}

void Unit::finish_leaving() {
  if (!copies_) return;
  const torch::NoGradGuard no_grad;
  const Timed timed(times_.reduce_wait_seconds);
  copies_->finish_leaving();
}

/// Brings the sum that was just taken, times `factor`, to the gradient of the slice.
void Unit::finish_sum(size_t index, double factor) {
  auto& buffer = buffers_[index];
  buffer.bring_gradient();
  const auto own = buffer.own_part(buffer.gradient);
  auto slice = buffer.gradient_of_slice();
  if (buffer.plan().fp8_gradients) {
    auto sum = own.to(slice.device(), torch::kFloat32);
    if (factor != 1) sum = sum * factor;
    if (buffer.gradient_slice.allocated()) sum = sum + buffer.gradient_numbers();
    buffer.keep_gradient(sum);
  } else if (buffer.plan().gradient_slice_in_gradient || straight_[index]) {
    if (factor != 1) slice.mul_(factor);
    if (earlier_[index].defined()) slice.add_(earlier_[index]);
    earlier_[index].reset();
  } else if (copies_ && buffer.options().offloaded) {
    const bool adds = buffer.gradient_slice.allocated();
    buffer.gradient_slice.allocate();
    copies_->send(slice, own, factor, adds);
    if (buffer.plan().gradient_on_drives) finish_leaving();
  } else if (buffer.gradient_slice.allocated()) {
    slice.add_(own, factor);
  } else {
    buffer.gradient_slice.allocate();
    slice.copy_(own);
    if (factor != 1) slice.mul_(factor);
  }
  buffer.put_gradient_away();
  if (buffer.plan().gradient_slice_in_gradient) return;
  buffer.clear_gradient();
  buffer.free_gradient();
}

void Unit::start_replicate() {
  if (!sums_over_replicas() || replicated_) return;
  finish_leaving();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    auto& buffer = buffers_[i];
    if (!sums_over_replicas(buffer)) continue;
    buffer.bring_gradient();
    const auto gradient = replica_numbers_[i] = buffer.gradient_numbers();
    const auto& axis = axes_.of(buffer).replicate;
    if (fp8_communication_) {
      fp8_sums_[i].emplace(axis, gradient, SumResult::all);
    } else {
      replicates_.push_back(axis.all_reduce(gradient));
    }
  }
  replicated_ = true;
}

void Unit::finish_replicas() {
  const torch::NoGradGuard no_grad;
  wait(replicates_, times_.reduce_wait_seconds);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (fp8_sums_[i]) fp8_sums_[i]->finish();
    fp8_sums_[i].reset();
    const auto numbers = std::exchange(replica_numbers_[i], {});
    if (!numbers.defined()) continue;
    if (buffers_[i].plan().fp8_gradients) buffers_[i].keep_gradient(numbers);
    buffers_[i].put_gradient_away();
  }
}

void Unit::finish_replicate() {
  finish_leaving();
  finish_replicas();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const auto& replication = buffers_[i].options().replication;
    if (!buffers_[i].trained() || !replication.partial_gradients) continue;
    buffers_[i].bring_gradient();
    replica_numbers_[i] = buffers_[i].gradient_numbers();
    replicates_.push_back(replication.ranks.all_reduce(replica_numbers_[i]));
    replicated_ = true;
  }
  finish_replicas();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!replicated_sums_[i].defined()) continue;
    buffers_[i].gradient_of_slice().add_(replicated_sums_[i]);
    replicated_sums_[i].reset();
  }
}

/// A backward comes after the sum over replicas: that sum waits beside for the next one.
void Unit::set_sums_apart() {
  wait(replicates_, times_.reduce_wait_seconds);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    auto& buffer = buffers_[i];
    if (!buffer.trained()) continue;
    TORCH_CHECK_VALUE(
        !buffer.plan().fp8_gradients && !buffer.plan().gradient_on_drives, "unit ", name_,
        ": expected no backward after the last of a step, as its gradient is kept in 8 "
        "bits or on drives; got another");
    const auto slice = buffer.gradient_of_slice();
    auto& sum = replicated_sums_[i];
    sum = sum.defined() ? sum.add_(slice) : slice.clone();
    slice.zero_();
  }
  replicated_ = false;
}

void Unit::forget_gradients() {
  finish_leaving();
  for (auto& buffer : buffers_) {
    if (!buffer.trained()) continue;
    buffer.clear_gradient();
    buffer.free_gradient();
    buffer.forget_gradient_slice();
    buffer.reset_arrivals();
  }
  for (auto& tensor : earlier_) tensor.reset();
  for (auto& tensor : replicated_sums_) tensor.reset();
  reduced_ = replicated_ = adds_in_place_ = false;
}

}  // namespace tessera::parallel
