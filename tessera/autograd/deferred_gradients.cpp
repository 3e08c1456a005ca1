#include "tessera/autograd/deferred_gradients.h"

#include <utility>

namespace tessera::autograd {
namespace {

thread_local DeferredGradientsPtr innermost_scope;

}  // namespace

void DeferredGradients::run() {
  for (auto& product : products_) std::exchange(product, {})();
  products_.clear();
}

DeferScope::DeferScope(DeferredGradientsPtr gradients)
    : before_(std::exchange(innermost_scope, std::move(gradients))) {}

DeferScope::~DeferScope() { innermost_scope = std::move(before_); }

const DeferredGradientsPtr& DeferScope::current() { return innermost_scope; }

}  // namespace tessera::autograd
