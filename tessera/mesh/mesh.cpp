#include "tessera/mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::mesh {

DeviceMesh::DeviceMesh(const MeshShape& shape, const comm::Rendezvous& where,
                       const comm::Transport& transport, c10::Device device)
    : DeviceMesh(shape, where, transport, device,
                 (check_shape(shape, where.world_size), comm::connect(where))) {}

DeviceMesh::DeviceMesh(const MeshShape& shape, const comm::Rendezvous& where,
                       const comm::Transport& transport, c10::Device device,
                       c10::intrusive_ptr<c10d::Store> store)
    : shape_(shape),
      where_(where),
      transport_(transport),
      store_(std::move(store)),
      device_(device) {
  if (where.world_size > 1) {
    sockets_ = comm::make_gloo_device(where_, store_);
    roll_call_ = std::make_shared<comm::RollCall>(
        store_, comm::RollCallOptions{.rank = where.rank,
                                      .server = where.served ? std::nullopt : std::optional(0),
                                      .timeout = where.timeout,
                                      .one_machine = where.one_machine});
  }
}

DeviceMesh DeviceMesh::with_transport(const std::string& name,
                                      const comm::Transport& transport) const {
  c10::intrusive_ptr<c10d::Store> store;
  if (size() > 1) store = c10::make_intrusive<c10d::PrefixStore>("transport/" + name, store_);
  return {shape_, where_, transport, device_, std::move(store)};
}

const Axis& DeviceMesh::axis(std::initializer_list<std::string_view> names,
                             const AxisOptions& options) const {
  std::vector<AxisName> named;
  for (const auto name : names) named.push_back(axis_named(name));
  std::ranges::sort(named);
  auto along = spanning(shape_, named);

  std::string name;
  for (const auto axis : along.empty() ? named : along) {
    name += fmt::format("{}{}", name.empty() ? "" : "+", text_of(axis));
  }
  auto ranks = group_of(shape_, along, rank());
  const int size = static_cast<int>(ranks.size());
  if (options.split != 0 && options.split != size) {
    if (options.split < 0 || size % options.split != 0) {
      user_error("split of axis {}: expected a divisor of its {} ranks, got {}", name, size,
                 options.split);
    }
    ranks = part_of(ranks, options.split, rank());
    name += fmt::format(":{}", options.split);
  }
  if (!options.only.empty() && options.only.size() != ranks.size()) {
    TORCH_INTERNAL_ASSERT(options.split == 0);
    std::vector<int> chosen;
    for (const int i : options.only) chosen.push_back(ranks.at(static_cast<size_t>(i)));
    TORCH_INTERNAL_ASSERT(std::ranges::count(chosen, rank()) == 1);
    ranks = std::move(chosen);
    name += fmt::format("[{}]", fmt::join(options.only, ","));
  }
  if (!options.channel.empty()) name += fmt::format("/{}", options.channel);
  const auto found = axes_.find(name);
  if (found != axes_.end()) return found->second;
  comm::GroupOptions group{.name = name,
                           .axes = std::move(along),
                           .channel = std::string(options.channel),
                           .ranks = std::move(ranks)};
  return axes_.emplace(name, make(std::move(group))).first->second;
}

const Axis& DeviceMesh::world(const AxisOptions& options) const {
  auto own = options;
  if (own.channel.empty()) own.channel = "world";
  return axis({"pp", "dp_replicate", "dp_shard", "cp", "tp"}, own);
}

const Axis& DeviceMesh::all_of_training() const {
  return axis({"pp", "dp_replicate", "dp_shard", "cp", "tp"});
}

Axis DeviceMesh::make(comm::GroupOptions group) const {
  const auto& ranks = group.ranks;
  if (ranks.size() == 1) return Axis(group.name);
  comm::meet(store_, {.name = group.name, .ranks = ranks}, *roll_call_);
  group.rank = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  group.roll_call = roll_call_;
  group.timeout = where_.timeout;
  group.transport = transport_;
  group.device = device_;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("axis/{}/{}", group.name, ranks.front()), store_);
  return Axis(group, sockets_, store);
}

std::vector<Axis> DeviceMesh::used_axes() const {
  std::vector<Axis> used;
  for (const auto& [name, axis] : axes_) {
    if (axis.size() > 1) used.push_back(axis);
  }
  return used;
}

}  // namespace tessera::mesh
