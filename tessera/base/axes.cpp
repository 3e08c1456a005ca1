#include "tessera/base/axes.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/fitting.h"
#include "tessera/base/nearest.h"

namespace tessera::mesh {
namespace {

/// What axes are made of, outermost first: data axes and tp fall apart into what ep borrows and the
/// rest, tp into what divides experts as well.
constexpr size_t kNumFactors = 9;
enum Factor : unsigned {
  of_pp = 1 << 0,
  of_replicate = 1 << 1,
  of_replicate_in_ep = 1 << 2,
  of_shard = 1 << 3,
  of_shard_in_ep = 1 << 4,
  of_cp = 1 << 5,
  of_tp = 1 << 6,
  of_tp_in_ep = 1 << 7,
  of_etp = 1 << 8
};

std::array<int, kNumFactors> factors(const MeshShape& shape) {
  const bool from_shard = shape.dp_shard > 1;
  return {shape.pp,
          shape.expert_replicate(),
          from_shard ? 1 : shape.ep_of_data(),
          shape.expert_shard() / shape.tp_beside(),
          from_shard ? shape.ep_of_data() : 1,
          shape.cp,
          shape.tp_beside(),
          shape.ep_of_tp(),
          shape.expert_tp()};
}

/// The factors of an axis.
unsigned factors_of(AxisName axis) {
  switch (axis) {
    case AxisName::pp:
      return of_pp;
    case AxisName::dp_replicate:
      return of_replicate | of_replicate_in_ep;
    case AxisName::dp_shard:
      return of_shard | of_shard_in_ep;
    case AxisName::cp:
      return of_cp;
    case AxisName::tp:
      return of_tp | of_tp_in_ep | of_etp;
    case AxisName::ep:
      return of_replicate_in_ep | of_shard_in_ep | of_tp_in_ep;
    case AxisName::etp:
      return of_etp;
    case AxisName::expert_replicate:
      return of_replicate;
    case AxisName::expert_shard:
      return of_shard | of_tp;
  }
  return 0;
}

/// Those of `chosen` that have more than one rank.
unsigned wide(const MeshShape& shape, unsigned chosen) {
  const auto sizes = factors(shape);
  for (size_t d = 0; d < kNumFactors; ++d) {
    if (sizes[d] == 1) chosen &= ~(1U << d);
  }
  return chosen;
}

/// A rank's place along each factor, and back.
std::array<int, kNumFactors> place_of(const MeshShape& shape, int rank) {
  const auto sizes = factors(shape);
  std::array<int, kNumFactors> at{};
  for (size_t d = kNumFactors; d-- > 0;) {
    at[d] = rank % sizes[d];
    rank /= sizes[d];
  }
  return at;
}

int rank_at(const MeshShape& shape, const std::array<int, kNumFactors>& at) {
  const auto sizes = factors(shape);
  int rank = 0;
  for (size_t d = 0; d < kNumFactors; ++d) rank = rank * sizes[d] + at[d];
  return rank;
}

/// Sizes of the axes that add ranks, which are the first ones of AxisName.
std::array<int, 5> own_sizes(const MeshShape& shape) {
  return {shape.pp, shape.dp_replicate, shape.dp_shard, shape.cp, shape.tp};
}

int64_t product(const MeshShape& shape) {
  int64_t ranks = 1;
  for (const int size : own_sizes(shape)) ranks *= size;
  return ranks;
}

/// The data axis that ep borrows from.
std::pair<const char*, int> lender_of(const MeshShape& shape) {
  if (shape.dp_shard > 1) return {"dp_shard", shape.dp_shard};
  return {"dp_replicate", shape.dp_replicate};
}

/// What would make the shape fit: another dp_replicate, else another number of ranks.
std::string nearest_fix(const MeshShape& shape, int world_size) {
  const int64_t others = product(shape) / shape.dp_replicate;
  if (world_size % others == 0) {
    return fmt::format("set dp_replicate to {}, or start {} ranks", world_size / others,
                       product(shape));
  }
  return fmt::format("start {} ranks",
                     others * std::max<int64_t>(1, (world_size + others / 2) / others));
}

}  // namespace

int MeshShape::num_ranks() const { return static_cast<int>(product(*this)); }

AxisName axis_named(std::string_view name) {
  const auto found = value_named<AxisName>(name);
  if (!found) {
    const auto names = texts_of<AxisName>();
    user_error("mesh axis: expected one of {}, got '{}'{}", fmt::join(names, ", "), name,
               did_you_mean(name, names));
  }
  return *found;
}

std::optional<std::string> ep_problem(const MeshShape& shape) {
  const auto [lender, ranks] = lender_of(shape);
  const int of_tp = shape.tp / shape.expert_tp();
  if (shape.ep >= 1 && (ranks < 1 || ranks % shape.ep_of_data() == 0)) return std::nullopt;
  const auto fitting = fitting_numbers(ranks * of_tp, [&, ranks = ranks](int size) {
    return ranks % (size / std::gcd(size, of_tp)) == 0;
  });
  const auto more = of_tp == 1 ? ""
                               : fmt::format(" times a divisor of the {} of tp that etp {} leaves",
                                             of_tp, shape.etp);
  return fmt::format("expected a divisor of the {} ranks of {}{}, got {}; set one of {}", ranks,
                     lender, more, shape.ep, fmt::join(fitting, ", "));
}

std::optional<std::string> etp_problem(const MeshShape& shape) {
  if (shape.etp == 0 || (shape.etp > 0 && shape.tp % shape.etp == 0)) return std::nullopt;
  const auto fitting = fitting_numbers(shape.tp, [&](int size) { return shape.tp % size == 0; });
  return fmt::format("expected a divisor of the {} ranks of tp, got {}; set one of {}", shape.tp,
                     shape.etp, fmt::join(fitting, ", "));
}

void check_shape(const MeshShape& shape, int world_size) {
  const auto sizes = own_sizes(shape);
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 1) user_error("{}: expected at least 1, got {}", kTexts<AxisName>[d], sizes[d]);
  }
  if (const auto problem = etp_problem(shape)) user_error("etp: {}", *problem);
  if (const auto problem = ep_problem(shape)) user_error("ep: {}", *problem);
  if (product(shape) != world_size) {
    user_error("mesh ({}): expected {} ranks, got {}; {}", describe(shape), product(shape),
               world_size, nearest_fix(shape, world_size));
  }
}

Coordinates coordinates_of(const MeshShape& shape, int rank) {
  const auto sizes = factors(shape), place = place_of(shape, rank);
  Coordinates at{};
  for (size_t axis = 0; axis < kNumAxes; ++axis) {
    const unsigned of_axis = factors_of(static_cast<AxisName>(axis));
    for (size_t d = 0; d < kNumFactors; ++d) {
      if ((of_axis >> d & 1) != 0) at[axis] = at[axis] * sizes[d] + place[d];
    }
  }
  return at;
}

std::vector<AxisName> spanning(const MeshShape& shape, std::span<const AxisName> axes) {
  const std::set<AxisName> named(axes.begin(), axes.end());
  std::vector<AxisName> kept;
  for (const auto axis : named) {
    const unsigned own = wide(shape, factors_of(axis));
    const auto contains = [&](AxisName other) {
      const unsigned all = wide(shape, factors_of(other));
      return other != axis && (own & ~all) == 0 && (own != all || other < axis);
    };
    if (own != 0 && std::ranges::none_of(named, contains)) kept.push_back(axis);
  }
  return kept;
}

std::vector<int> group_of(const MeshShape& shape, std::span<const AxisName> axes, int rank) {
  const auto sizes = factors(shape);
  unsigned along = 0;
  for (const auto axis : axes) along |= wide(shape, factors_of(axis));
  std::vector<int> ranks;
  const auto visit = [&](const auto& self, std::array<int, kNumFactors> at, size_t d) -> void {
    if (d == kNumFactors) return ranks.push_back(rank_at(shape, at));
    if ((along >> d & 1) == 0) return self(self, at, d + 1);
    for (at[d] = 0; at[d] < sizes[d]; ++at[d]) self(self, at, d + 1);
  };
  visit(visit, place_of(shape, rank), 0);
  return ranks;
}

std::vector<int> part_of(std::span<const int> ranks, int size, int rank) {
  const auto mine = std::ranges::find(ranks, rank) - ranks.begin();
  const auto part = ranks.subspan(static_cast<size_t>(mine / size * size), size);
  return {part.begin(), part.end()};
}

std::string describe(const MeshShape& shape) {
  const auto sizes = shape.sizes();
  std::string text;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto axis = static_cast<AxisName>(d);
    const bool follows = axis > AxisName::ep;
    if (sizes[d] == 1 || follows) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kTexts<AxisName>[d], sizes[d]);
  }
  if (shape.expert_tp() < shape.tp) text += fmt::format(", etp {}", shape.etp);
  return text.empty() ? "one rank" : text;
}

}  // namespace tessera::mesh
