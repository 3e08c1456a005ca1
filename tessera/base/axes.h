// The axes of a run, in one list for configuration, mesh, counters and estimates, and which rank
// stands where on them: pure arithmetic, no processes.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/texts.h"

namespace tessera::mesh {

/// Outermost first: neighbouring ranks differ in `tp`, which talks most and needs the fastest links.
enum class AxisName {
  pp,                ///< pipeline stages
  dp_replicate,      ///< copies of the parameters
  dp_shard,          ///< slices of the parameters
  cp,                ///< pieces of the sequence
  ep,                ///< groups of experts: neighbours among the data ranks
  tp,                ///< slices of each matrix
  expert_replicate,  ///< copies of a group of experts
  expert_shard       ///< slices of a group of experts
};

}  // namespace tessera::mesh

template <>
inline constexpr auto tessera::kTexts<tessera::mesh::AxisName> = std::to_array<std::string_view>(
    {"pp", "dp_replicate", "dp_shard", "cp", "ep", "tp", "expert_replicate", "expert_shard"});

namespace tessera::mesh {

inline constexpr size_t kNumAxes = num_values<AxisName>();

/// Ranks along each axis. `ep` adds no ranks: experts lie on the same ranks otherwise than what all
/// tokens pass. Data ranks are dp_replicate x dp_shard = expert_replicate x expert_shard x ep, and
/// ep divides dp_shard, or dp_replicate where nothing is sharded (MoE parallel folding; Liu et al.,
/// 2025).
struct MeshShape {
  int pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, ep = 1, tp = 1;

  int expert_replicate() const { return dp_shard > 1 ? dp_replicate : dp_replicate / ep; }
  int expert_shard() const { return dp_shard > 1 ? dp_shard / ep : 1; }
  std::array<int, kNumAxes> sizes() const {
    return {pp, dp_replicate, dp_shard, cp, ep, tp, expert_replicate(), expert_shard()};
  }
  int num_ranks() const;
  int data_ranks() const { return dp_replicate * dp_shard; }  ///< that take different rows
  bool operator==(const MeshShape&) const = default;
};

/// A rank's place along each axis, in the order of AxisName.
using Coordinates = std::array<int, kNumAxes>;

/// Throws UserError with the nearest name if there is none.
AxisName axis_named(std::string_view name);

/// Why ep cannot borrow its ranks from the data axes, if so: it divides those of one.
std::optional<std::string> ep_problem(const MeshShape& shape);

/// Throws UserError unless every size is at least 1, ep divides what it borrows from, and the
/// product is `world_size`: one line with the product and the nearest fix.
void check_shape(const MeshShape& shape, int world_size);

Coordinates coordinates_of(const MeshShape& shape, int rank);

/// Of `axes`, in order and each once, those of more than one rank that no other one contains: where
/// ep borrows from dp_shard, dp_shard contains it.
std::vector<AxisName> spanning(const MeshShape& shape, std::span<const AxisName> axes);

/// The ranks of `rank`'s group along `axes` (flattened, outermost first), ascending; `rank` is one
/// of them.
std::vector<int> group_of(const MeshShape& shape, std::span<const AxisName> axes, int rank);

/// `rank`'s part of `ranks` where every `size` consecutive ones are a part; `size` divides their
/// number.
std::vector<int> part_of(std::span<const int> ranks, int size, int rank);

/// "dp_replicate 2, tp 4": the axes of more than one rank, or "one rank".
std::string describe(const MeshShape& shape);

}  // namespace tessera::mesh
