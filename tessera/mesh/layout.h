// Which rank stands where in a mesh: pure arithmetic, no processes.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::mesh {

/// Named dimensions, outermost first: neighbouring ranks differ in `tp`, which talks most and needs
/// the fastest links.
inline constexpr std::array<std::string_view, 6> kDimensions = {"pp", "dp_replicate", "dp_shard",
                                                                "cp", "ep",           "tp"};

/// Ranks along each dimension.
struct MeshShape {
  int pp = 1;            ///< pipeline stages
  int dp_replicate = 1;  ///< copies of the parameters
  int dp_shard = 1;      ///< slices of the parameters
  int cp = 1;            ///< pieces of the sequence
  int ep = 1;            ///< groups of experts
  int tp = 1;            ///< slices of each matrix

  std::array<int, 6> sizes() const { return {pp, dp_replicate, dp_shard, cp, ep, tp}; }
  int num_ranks() const;
  bool operator==(const MeshShape&) const = default;
};

/// A rank's place along each dimension, in the order of kDimensions.
using Coordinates = std::array<int, 6>;

/// Index in kDimensions; throws UserError with the nearest name if there is none.
int dimension_index(std::string_view name);

/// Throws UserError unless every size is at least 1 and their product is `world_size`: one line
/// with the product and the nearest fix.
void check_shape(const MeshShape& shape, int world_size);

Coordinates coordinates_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const Coordinates& at);

/// The ranks of `rank`'s group along `dimensions` (flattened, outermost first), ascending; `rank`
/// is one of them.
std::vector<int> group_of(const MeshShape& shape, std::span<const int> dimensions, int rank);

/// `rank`'s part of `ranks` where every `size` consecutive ones are a part; `size` divides their
/// number.
std::vector<int> part_of(std::span<const int> ranks, int size, int rank);

/// "dp_replicate 2, tp 4": the dimensions of more than one rank, or "one rank".
std::string describe(const MeshShape& shape);

}  // namespace tessera::mesh
