// The axes of a run, in one list for configuration, mesh, counters and estimates, and which rank
// stands where on them: pure arithmetic, no processes.
#pragma once

#include <array>
#include <cstddef>
#include <numeric>
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
  tp,                ///< slices of each matrix
  ep,                ///< groups of experts, on ranks that tp and the data axes lend
  etp,               ///< slices of each expert's matrices: neighbours within tp
  expert_replicate,  ///< copies of a group of experts
  expert_shard       ///< slices of a group of experts
};

}  // namespace tessera::mesh

template <>
inline constexpr auto tessera::kTexts<tessera::mesh::AxisName> =
    std::to_array<std::string_view>({"pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp",
                                     "expert_replicate", "expert_shard"});

namespace tessera::mesh {

inline constexpr size_t kNumAxes = num_values<AxisName>();

/// Ranks along each axis. `ep` and `etp` add no ranks: experts lie on the same ranks otherwise than what
/// all tokens pass (MoE parallel folding; Liu et al., 2025). dp_replicate x dp_shard x tp =
/// expert_replicate x expert_shard x ep x etp: etp divides tp; of the other ranks of tp, ep takes as many
/// as it can, and borrows the rest from dp_shard, or from dp_replicate where nothing is sharded.
struct MeshShape {
  int pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, ep = 1, tp = 1;
  int etp = 0;  ///< 0: as many as tp

  int expert_tp() const { return etp > 0 ? etp : tp; }
  int ep_of_tp() const { return std::gcd(ep, tp / expert_tp()); }  ///< of ep, what tp lends
  int ep_of_data() const { return ep / ep_of_tp(); }               ///< and what the data axes do
  int tp_beside() const { return tp / expert_tp() / ep_of_tp(); }  ///< of tp, what etp and ep leave
  int expert_replicate() const { return dp_shard > 1 ? dp_replicate : dp_replicate / ep_of_data(); }
  int expert_shard() const { return (dp_shard > 1 ? dp_shard / ep_of_data() : 1) * tp_beside(); }
  /// Do other ranks share an expert than what all tokens pass?
  bool experts_apart() const { return ep > 1 || expert_tp() < tp; }
  std::array<int, kNumAxes> sizes() const {
    return {pp,          dp_replicate,       dp_shard,      cp, tp, ep,
            expert_tp(), expert_replicate(), expert_shard()};
  }
  int num_ranks() const;
  int data_ranks() const { return dp_replicate * dp_shard; }  ///< that take different rows
  bool operator==(const MeshShape&) const = default;
};

/// A rank's place along each axis, in the order of AxisName.
using Coordinates = std::array<int, kNumAxes>;

/// Throws UserError with the nearest name if there is none.
AxisName axis_named(std::string_view name);

/// Why ep cannot borrow its ranks, if so; etp is right.
std::optional<std::string> ep_problem(const MeshShape& shape);
/// Why etp cannot be, if so: it divides tp.
std::optional<std::string> etp_problem(const MeshShape& shape);

/// Throws UserError unless every size is at least 1, ep and etp divide what they borrow from, and the
/// product is `world_size`: one line with the product and the nearest fix.
void check_shape(const MeshShape& shape, int world_size);

Coordinates coordinates_of(const MeshShape& shape, int rank);

/// Those of `axes` that have more than one rank and are not part of another one, in order and each
/// once: where ep borrows from dp_shard, dp_shard contains it.
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
