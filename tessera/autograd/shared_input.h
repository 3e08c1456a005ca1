// An input that several products read, made of what other ranks have (tensor parallelism): what is
// kept of it until their backward, and when their weights' gradients are computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/autograd/deferred_gradients.h"

namespace tessera::autograd {

/// The input that one forward of an operator made. Products that read it save what is kept of it,
/// and in their backward leave the gradients of their weights here; the operator's own backward,
/// which autograd runs after theirs, computes them while the gradient of the input is on its way to
/// other ranks.
class SharedInput {
 public:
  using Finish = std::function<at::Tensor()>;
  /// Begins to make the input of what was kept of it.
  using Restore = std::function<Finish(const at::Tensor& kept)>;
  /// Adds a weight's gradient to where it is kept.
  using Product = std::function<void(const at::Tensor& input)>;

  /// In a split backward (DeferScope, now) products wait for its second part, and so does the
  /// input.
  explicit SharedInput(Restore restore)
      : restore_(std::move(restore)), deferred_(DeferScope::current()) {}

  /// Adds a product; called in the backward of one whose input's gradient is needed, too.
  void add(const at::Tensor& kept, Product product);

  /// Makes the input now, for a gradient that cannot wait.
  at::Tensor restore(const at::Tensor& kept);

  /// Computes what was added, or hands it to the split backward; the input is let go.
  void run();

 private:
  Restore restore_;
  DeferredGradientsPtr deferred_;
  at::Tensor kept_, input_;  // of a backward that is under way
  Finish begun_;
  std::vector<Product> products_;
};
using SharedInputPtr = std::shared_ptr<SharedInput>;

/// An input that this thread's products may share.
struct Shared {
  at::Tensor input, kept;
  SharedInputPtr by;
};

/// Offers an input to this thread's products until the next call; {}: none.
void share(std::optional<Shared> shared);

/// If `input` is what is shared, that, else null.
const Shared* shared_as(const at::Tensor& input);

}  // namespace tessera::autograd
