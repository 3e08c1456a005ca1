#include "tessera/kernels/deferred_gradients.h"

#include <utility>

namespace tessera::kernels {
namespace {

thread_local DeferredGradientsPtr innermost;

}  // namespace

void DeferredGradients::run() {
  for (auto& product : products_) std::exchange(product, {})();
  products_.clear();
}

DeferScope::DeferScope(DeferredGradientsPtr gradients)
    : before_(std::exchange(innermost, std::move(gradients))) {}

DeferScope::~DeferScope() { innermost = std::move(before_); }

const DeferredGradientsPtr& DeferScope::current() { return innermost; }

}  // namespace tessera::kernels
