// Dropout as a module, and where its random numbers come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/nn/hooked.h"

namespace tessera::nn {

/// What random numbers of a forward depend on, beside layer and position.
struct RandomContext {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_row = 0;  ///< of the micro-batch in the global batch, over all ranks
};

/// While it lives, Dropout modules that this thread calls draw from `context`. One stands around
/// the forward of a micro-batch; a checkpointed module runs its second forward in that of the first
/// (memory/activation_checkpointing.h). Scopes nest.
class RandomScope {
 public:
  explicit RandomScope(const std::optional<RandomContext>& context);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

  /// The context of this thread's innermost scope, if there is one.
  static const std::optional<RandomContext>& current();

 private:
  std::optional<RandomContext> before_;
};

/// Does this thread's call of `module` serve training? Not in evaluation, nor outside of a RandomScope without
/// grad mode, unless it is the first forward of a checkpointed module.
bool trains(const Hookable& module);

/// The context that `layer` draws from in training. ValueError outside of a RandomScope.
const RandomContext& random_context(const std::string& layer);

/// kernels::dropout of x [B, ..] with the context's numbers: what is dropped is a function of
/// (seed, step, `name`, row in the global batch, position in the row), so it depends neither on the
/// number of ranks, nor on micro-batches, nor on checkpointing. In evaluation x is returned; so it
/// is outside of a RandomScope without grad mode. There under grad mode: ValueError.
class DropoutImpl : public Hookable {
 public:
  /// `name`: of the layer in its model; layers of one name drop the same.
  DropoutImpl(std::string name, double probability);
  torch::Tensor forward(const torch::Tensor& x);

  /// From now on x is part `part` of `parts` equal ones of a sequence, cut along its second
  /// dimension.
  void divide_sequence(int64_t part, int64_t parts) { part_ = part, parts_ = parts; }
  /// From now on x [.., n] is features first .. first + n of `total`.
  void divide_features(int64_t first, int64_t total) { first_ = first, total_ = total; }

 private:
  int64_t part_ = 0, parts_ = 1;
  int64_t first_ = 0, total_ = 0;  // 0: x has all features
  std::string layer_;
  double probability_;
};
using Dropout = Hooked<DropoutImpl>;

}  // namespace tessera::nn
