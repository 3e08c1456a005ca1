// What a rank holds of a training state, whoever made it: parts of named tensors.
#pragma once

#include <torch/types.h>

#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/shard.h"
#include "tessera/offload/stored_bytes.h"

namespace tessera::checkpoint {

struct HeldExtent {
  TensorExtent extent;          ///< which elements of which tensor
  torch::Tensor values;         ///< [length], contiguous, on any device; on the meta device: ..
  offload::StoredBytes stored;  ///< .. they are here, at the same places as in its storage
  int replicas = 1;             ///< ranks that hold the same elements ..
  int replica = 0;              ///< .. and which of them this is
  std::string replica_group;    ///< tells groups of as many replicas apart, which share other parts
};

/// Where the first of values is in its storage, in bytes.
int64_t begin_in_storage(const torch::Tensor& values);

/// `values` as elements begin .. of those that `stripe` takes of the tensor `name` of shape
/// `shape`.
HeldExtent held_extent(std::string name, std::vector<int64_t> shape, int64_t begin,
                       const torch::Tensor& values, const Stripe& stripe = {});

/// What this rank writes of what it holds: replicas share the work evenly. Of parts with as many
/// replicas and replica_group, in the same order on all of them, each takes one run of elements.
std::vector<HeldExtent> own_share(const std::vector<HeldExtent>& held);

/// The tensors that somebody expects in a checkpoint: name and shape, in the order of the model.
using Expected = std::vector<std::pair<std::string, std::vector<int64_t>>>;

/// UserError, one line, if `checkpoint` is another model's: the first expected tensor (in order)
/// whose shape differs or, if strict, that is missing; then, if strict, the first it has beside
/// them. Else a line that names those that are missing, and one those that are left out.
std::vector<std::string> check_expected(const Checkpoint& checkpoint, const Expected& expected,
                                        bool strict);

/// Fills the parts, converting dtypes. Those that the checkpoint lacks stay as they are. Reads the
/// bytes of these parts alone (and their blocks to the end). UserError: damage.
/// Memory: parts of other dtype or device once more in the stored dtype.
void load_extents(const Checkpoint& checkpoint, std::span<const HeldExtent> held);

}  // namespace tessera::checkpoint
