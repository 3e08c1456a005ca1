// Activation checkpointing: memory for time (Chen et al., Training Deep Nets with Sublinear Memory
// Cost, 2016; Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models,
// 2022, section 5).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/memory/activation_store.h"
#include "tessera/nn/hooked.h"

namespace tessera::memory {

struct CheckpointOptions {
  CheckpointMode mode = CheckpointMode::full;

  int64_t every_k = 1;  ///< of `checkpoint_blocks`: blocks 0, k, 2k, .. are checkpointed

  /// The last matrix product of the module is neither kept nor computed again. For modules
  /// that end by adding it, perhaps after dropout, to something (residual blocks): no gradient depends
  /// on its value. Anything else gets wrong gradients: NaN, unless they only compare values (relu).
  bool drop_last_product = false;

  /// Where what is kept waits for its backward; null: where it is.
  std::shared_ptr<ActivationStore> offload = nullptr;
};

/// From now on a call of `module` under grad mode keeps what `options.mode` says. Gradients are
/// those of the plain module, bit for bit: the recomputation draws the same random numbers (the
/// states of the default generators are kept if the forward changed them) under the same autocast.
/// Calls without grad mode, and those for which neither an argument nor a parameter needs a
/// gradient, are plain. The module may be called several times in one graph, contain checkpointed
/// modules, and have frozen parameters. Other hooks of the module run around all this, once per
/// call; those of modules inside it run in the recomputation as well.
///
/// Cost: one forward more in backward (feed_forward: what follows attention; selective: its cheap part), in exchange for all that the
/// inside of the module saves. docs/activation_checkpointing.md has figures.
///
/// The module must outlive the graphs of its calls, take what needs gradients in its arguments (as
/// nn/tensors_in.h finds it), leave them as they are, return what the loss is made of or give it to
/// nn::add_output, and compute the same both times; a running average inside (batch norm) moves
/// twice. Its backward is not twice differentiable and fills .grad(): torch::autograd::grad and
/// backward(inputs) raise ValueError. Throws c10::ValueError on options that do not fit together,
/// if the module is checkpointed already or computes gradients in its forward; in a call as
/// `offload` does.
void checkpoint(nn::Hookable& module, const CheckpointOptions& options = {});

/// checkpoint() on every `options.every_k`-th of `blocks`, the first included.
void checkpoint_blocks(const std::vector<nn::Hookable*>& blocks,
                       const CheckpointOptions& options = {});

}  // namespace tessera::memory
