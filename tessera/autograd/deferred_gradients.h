// Gradients of weights that a backward leaves for later: what splits it into an input and a weight
// part (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2).
#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace tessera::autograd {

/// One backward's products for weights whose gradient is kept (autograd/gradient_sink.h).
class DeferredGradients {
 public:
  void add(std::function<void()> product) { products_.push_back(std::move(product)); }
  void run();  ///< in the order in which they were added; frees what they held

 private:
  std::vector<std::function<void()>> products_;
};
using DeferredGradientsPtr = std::shared_ptr<DeferredGradients>;

/// While it lives, operators whose forward this thread runs put their weights' products, when their
/// backward comes, to `gradients` (null: compute them at once). A checkpointed module runs its
/// second forward in the scope of the first. Scopes nest.
class DeferScope {
 public:
  explicit DeferScope(DeferredGradientsPtr gradients);
  ~DeferScope();
  DeferScope(const DeferScope&) = delete;
  DeferScope& operator=(const DeferScope&) = delete;

  static const DeferredGradientsPtr& current();  ///< of this thread; null without a scope

 private:
  DeferredGradientsPtr before_;
};

}  // namespace tessera::autograd
