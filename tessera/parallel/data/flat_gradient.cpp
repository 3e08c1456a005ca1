// A flat buffer's gradient: its memory, what of it holds numbers, and where something arrived.
#include <utility>

#include "tessera/autograd/gradient_sink.h"
#include "tessera/parallel/data/flat_buffer.h"

namespace tessera::parallel {

void FlatBuffer::begin_gradient() {
  if (!plan_.trained) return;
  if (!gradient.allocated()) {
    gradient.allocate();
    clear_gaps();
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& parameter = entries_[i].parameter;
    if (parameter.grad().defined() || !parameter.requires_grad()) continue;
    auto part = gradient.part(entries_[i].offset, parameter.sizes());
    autograd::set_unwritten(part);
    arrivals_[i].version = part._version();
    parameter.mutable_grad() = std::move(part);
  }
}

void FlatBuffer::fill_gradient() {
  if (!plan_.trained || !gradient.allocated()) return;
  for (const auto& entry : entries_) {
    const auto& grad = entry.parameter.grad();
    if (grad.defined() && autograd::adds_to(grad)) continue;  // else frozen, or nothing arrived
    // Not through grad itself, whose version tells of what arrives.
    gradient.part(entry.offset, entry.parameter.sizes()).zero_();
  }
}

void FlatBuffer::clear_gradient() {
  if (plan_.keeps_gradient) clear_gaps();  // whoever scaled all of it by NaN left that there
  for (const auto& entry : entries_) {
    if (entry.parameter.grad().defined()) autograd::set_unwritten(entry.parameter.grad());
  }
}

/// Between the parameters, where no backward writes.
void FlatBuffer::clear_gaps() {
  int64_t end = 0;  // of the parameter before
  const auto clear_until = [&](int64_t next) {
    if (next > end) gradient.tensor().narrow(0, end, next - end).zero_();
  };
  for (const auto& entry : entries_) {
    clear_until(entry.offset);
    end = entry.offset + entry.parameter.numel();
  }
  clear_until(size_);
}

void FlatBuffer::note_arrivals() {
  if (!plan_.trained) return;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& grad = entries_[i].parameter.grad();
    if (!grad.defined()) continue;
    auto& arrival = arrivals_[i];
    if (grad._version() != arrival.version) arrival.arrived = true;
    arrival.version = grad._version();
  }
}

void FlatBuffer::reset_arrivals() {
  note_arrivals();  // whoever changed gradients since did not add to them
  for (auto& arrival : arrivals_) arrival.arrived = false;
}

std::optional<std::string> FlatBuffer::stray_gradient() const {
  if (!plan_.trained) return {};
  for (const auto& entry : entries_) {
    const auto& grad = entry.parameter.grad();
    if (grad.defined() && !grad.storage().is_alias_of(gradient.tensor().storage())) {
      return entry.name;
    }
  }
  return {};
}

void FlatBuffer::free_gradient() {
  if (plan_.keeps_gradient) return;
  gradient.free();
  for (auto& entry : entries_) entry.parameter.mutable_grad().reset();
}

}  // namespace tessera::parallel
