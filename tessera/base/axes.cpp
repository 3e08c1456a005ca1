#include "tessera/base/axes.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"

namespace tessera::mesh {
namespace {

int64_t product(const MeshShape& shape) {
  const auto sizes = shape.sizes();
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
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

void check_shape(const MeshShape& shape, int world_size) {
  const auto sizes = shape.sizes();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 1) user_error("{}: expected at least 1, got {}", kTexts<AxisName>[d], sizes[d]);
  }
  if (product(shape) != world_size) {
    user_error("mesh ({}): expected {} ranks, got {}; {}", describe(shape), product(shape),
               world_size, nearest_fix(shape, world_size));
  }
}

Coordinates coordinates_of(const MeshShape& shape, int rank) {
  const auto sizes = shape.sizes();
  Coordinates at{};
  for (size_t d = sizes.size(); d-- > 0;) {
    at[d] = rank % sizes[d];
    rank /= sizes[d];
  }
  return at;
}

int rank_of(const MeshShape& shape, const Coordinates& at) {
  const auto sizes = shape.sizes();
  int rank = 0;
  for (size_t d = 0; d < sizes.size(); ++d) rank = rank * sizes[d] + at[d];
  return rank;
}

std::vector<int> group_of(const MeshShape& shape, std::span<const AxisName> axes, int rank) {
  const auto sizes = shape.sizes();
  std::vector<size_t> order;
  for (const auto axis : axes) order.push_back(static_cast<size_t>(axis));
  std::ranges::sort(order);
  Coordinates at = coordinates_of(shape, rank);
  for (const size_t d : order) at[d] = 0;

  std::vector<int> ranks;
  const auto visit = [&](const auto& self, size_t depth) -> void {
    if (depth == order.size()) {
      ranks.push_back(rank_of(shape, at));
      return;
    }
    for (int i = 0; i < sizes[order[depth]]; ++i) {
      at[order[depth]] = i;
      self(self, depth + 1);
    }
  };
  visit(visit, 0);
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
    if (sizes[d] == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kTexts<AxisName>[d], sizes[d]);
  }
  return text.empty() ? "one rank" : text;
}

}  // namespace tessera::mesh
