#include "tessera/autograd/shared_input.h"

#include <utility>

namespace tessera::autograd {
namespace {

thread_local std::optional<Shared> offered;

}  // namespace

void SharedInput::add(const at::Tensor& kept, Product product) {
  if (products_.empty()) {
    kept_ = kept;
    if (!deferred_ && !input_.defined()) begun_ = restore_(kept);
  }
  products_.push_back(std::move(product));
}

at::Tensor SharedInput::restore(const at::Tensor& kept) {
  if (!input_.defined()) input_ = (begun_ ? std::exchange(begun_, {}) : restore_(kept))();
  return input_;
}

void SharedInput::run() {
  const auto products = std::exchange(products_, {});
  const auto kept = std::exchange(kept_, {});
  if (!products.empty() && deferred_) {
    deferred_->add([restore = restore_, kept, products] {
      const auto input = restore(kept)();
      for (const auto& product : products) product(input);
    });
  } else if (!products.empty()) {
    const auto input = restore(kept);
    for (const auto& product : products) product(input);
  }
  input_.reset();
}

void share(std::optional<Shared> shared) { offered = std::move(shared); }

const Shared* shared_as(const at::Tensor& input) {
  return offered && offered->input.is_same(input) ? &*offered : nullptr;
}

}  // namespace tessera::autograd
