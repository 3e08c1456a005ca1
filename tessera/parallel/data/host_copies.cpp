#include "tessera/parallel/data/host_copies.h"

#include <exception>
#include <utility>

#include "tessera/kernels/pinned.h"

namespace tessera::parallel {

HostCopies::HostCopies(torch::Device device, const kernels::MakeCopyQueue& make)
    : device_(device), in_(make(device)), out_(make(device)) {}

HostCopies::~HostCopies() {
  try {
    if (!coming_.empty()) in_->finish();
    if (!leaving_.empty()) out_->finish();
  } catch (const std::exception&) {  // the device is lost, and with it all that is there
  }
}

void HostCopies::bring(const torch::Tensor& to, const torch::Tensor& slice) {
  in_->start(to, slice);
  coming_.insert(coming_.end(), {to, slice});
}

void HostCopies::finish_coming() {
  if (coming_.empty()) return;
  in_->finish();
  coming_.clear();
}

void HostCopies::send(const torch::Tensor& slice, const torch::Tensor& gradient, double factor,
                      bool adds) {
  auto leaves = gradient.to(slice.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  if (!adds && factor != 1) leaves.mul_(factor);
  const auto arrives =
      adds ? kernels::empty_pinned(slice.numel(), slice.scalar_type(), device_) : slice;
  out_->start(arrives, leaves);
  leaving_.push_back({leaves, arrives, adds ? slice : torch::Tensor(), factor});
}

void HostCopies::finish_leaving() {
  if (leaving_.empty()) return;
  out_->finish();
  for (const auto& each : std::exchange(leaving_, {})) {
    if (each.sum.defined()) each.sum.add_(each.on_host, each.factor);
  }
}

}  // namespace tessera::parallel
