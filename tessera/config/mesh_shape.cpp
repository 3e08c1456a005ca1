#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/config/run_config.h"

namespace tessera::config {
namespace {

/// An axis whose size the user may set.
struct AxisSize {
  const char* key;
  int64_t& size;
};

/// What is wrong with axes (pp, dp_replicate, dp_shard, tp) that do not make `num_ranks`; `open`: of
/// them, the size that took what the others left, or null.
KeyProblem misfit(std::span<const AxisSize, 4> axes, const int64_t* open, int64_t num_ranks) {
  int64_t product = 1;
  for (const auto& axis : axes) product *= axis.size;
  // The key to blame is the last that the user set, if the others leave it room.
  for (size_t i = axes.size(); i-- > 0;) {
    const auto& [key, size] = axes[i];
    if (size == 1 || &size == open) continue;
    const int64_t fixed = product / (open ? *open : 1) / size, room = num_ranks / fixed;
    if (num_ranks % fixed != 0) continue;
    int64_t fitting = room;  // where an axis is open, any divisor will do
    for (int64_t d = 1; open && d <= room; ++d) {
      if (room % d == 0 && std::abs(d - size) < std::abs(fitting - size)) fitting = d;
    }
    return {key, fmt::format("the mesh has {} ranks but the run has {}; set {} or -1", product,
                             num_ranks, fitting)};
  }
  const auto [pp, dp_replicate, dp_shard, tp] =
      std::array{axes[0].size, axes[1].size, axes[2].size, axes[3].size};
  const int64_t below = num_ranks / product * product;
  return {
      tp > 1 ? "parallel.tp" : "parallel.dp_shard",
      fmt::format("{}dp_replicate {} x dp_shard {} x tp {} make {} ranks but the run has {}; "
                  "start {}{}, or change a size",
                  pp > 1 ? fmt::format("pp {} x ", pp) : "", dp_replicate, dp_shard, tp, product,
                  num_ranks, below > 0 ? fmt::format("{} or ", below) : "", below + product)};
}

}  // namespace

std::variant<mesh::MeshShape, KeyProblem> mesh_shape(const ParallelSection& parallel,
                                                     int64_t num_ranks) {
  const bool sharded = parallel::is_sharded(parallel.placement);
  if (!sharded && parallel.dp_shard > 1) {
    return KeyProblem{"parallel.dp_shard",
                      fmt::format("{} ranks cannot share a model that is replicated; remove it, "
                                  "or set parallel.placement to full_shard",
                                  parallel.dp_shard)};
  }
  // The axes that the user left open, -1, but for the one that takes all that is left.
  int64_t pp = parallel.pp, dp_replicate = parallel.dp_replicate, tp = parallel.tp;
  int64_t dp_shard = sharded ? parallel.dp_shard : 1;
  auto& rest = tp == -1                    ? tp
               : pp == -1                  ? pp
               : sharded && dp_shard == -1 ? dp_shard
               : dp_replicate == -1        ? dp_replicate
                                           : tp;
  const AxisSize axes[] = {{"parallel.pp", pp},
                           {"parallel.dp_replicate", dp_replicate},
                           {"parallel.dp_shard", dp_shard},
                           {"parallel.tp", tp}};
  const bool open = rest == -1;
  int64_t others = 1;
  for (const auto& [key, size] : axes) {
    if (&size == &rest) continue;
    if (size == -1) size = 1;
    others *= size;
  }
  if (open) rest = std::max<int64_t>(1, num_ranks / others);
  if (others * rest == num_ranks) {
    const mesh::MeshShape mesh{.pp = static_cast<int>(pp),
                               .dp_replicate = static_cast<int>(dp_replicate),
                               .dp_shard = static_cast<int>(dp_shard),
                               .ep = static_cast<int>(parallel.ep),
                               .tp = static_cast<int>(tp),
                               .etp = tp > 1 ? static_cast<int>(parallel.etp.value_or(0)) : 0};
    if (auto problem = mesh::etp_problem(mesh)) return KeyProblem{"parallel.etp", *problem};
    if (auto problem = mesh::ep_problem(mesh)) return KeyProblem{"parallel.ep", *problem};
    return mesh;
  }

  return misfit(axes, open ? &rest : nullptr, num_ranks);
}

mesh::MeshShape fitting_mesh(const ParallelSection& parallel, int64_t num_ranks) {
  const auto sizes = mesh_shape(parallel, num_ranks);
  if (const auto* problem = std::get_if<KeyProblem>(&sizes)) {
    user_error("{}: {}", problem->key, problem->message);
  }
  return std::get<mesh::MeshShape>(sizes);
}

}  // namespace tessera::config
