// The mesh of a run: its ranks on named axes, each axis with its collectives.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/axes.h"
#include "tessera/comm/group.h"
#include "tessera/comm/store.h"

namespace tessera::mesh {

/// A group of ranks that differ along one or several axes of the mesh: size(), rank(), collectives.
using Axis = comm::Group;

/// The channel of groups that save beside the steps: what they move is not a step's traffic.
inline constexpr std::string_view kSaveChannel = "save";

struct AxisOptions {
  /// This rank's part alone where every `split` consecutive ranks of the axis are a part (FSDP2's
  /// integer reshard_after_forward); 0: the whole axis.
  int split = 0;
  /// Not empty: of the axis these ranks alone, ascending, this one among them.
  std::vector<int> only = {};
  /// Not empty: a second group of the same ranks, with a thread and an order of operations of its
  /// own, so that e.g. gathers never queue behind reductions. "dp_shard/reduce" in messages.
  std::string_view channel = {};
};

/// Move-only; lives as long as the run. Not for several threads at once.
///
/// An axis is made at its first use, by the ranks of its group alone: ranks that share a group must
/// first use their axes (parts and channels, too) in the same order, or get a DistError that names
/// the two axes. Axes of size 1 do not count: axis("dp_replicate"),
/// axis({"dp_replicate", "dp_shard"}) are one group (with one set of counters) where only
/// dp_replicate has more than one rank. Neither does an axis beside another one of the same
/// or more ranks: ep beside the axis that it borrows from, etp beside tp.
class DeviceMesh {
 public:
  /// Joins the run described by `where`. Throws UserError if the shape does not fit the world size
  /// (before anything listens or connects), or for what comm::connect refuses; c10::DistError when
  /// rank 0 is not found.
  /// `device`: what this rank computes on (comm::choose_device); the axes take its tensors and the
  /// CPU's.
  DeviceMesh(const MeshShape& shape, const comm::Rendezvous& where,
             const comm::Transport& transport = {}, c10::Device device = c10::kCPU);
  DeviceMesh() : DeviceMesh(MeshShape{}, comm::Rendezvous{}) {}  ///< of one rank: no network
  DeviceMesh(DeviceMesh&&) = default;

  /// The same ranks with groups of their own that use another transport, for tests and
  /// measurements. Collective.
  DeviceMesh with_transport(const std::string& name, const comm::Transport& transport) const;

  int rank() const { return where_.rank; }
  int size() const { return where_.world_size; }
  const MeshShape& shape() const { return shape_; }
  c10::Device device() const { return device_; }
  Coordinates coordinates(int rank) const { return coordinates_of(shape_, rank); }

  /// The axis of a name (base/axes.h: AxisName); UserError for another name, and if the split does not
  /// divide the axis. Either `split` or `only`. References stay valid as long as the mesh.
  const Axis& axis(std::string_view name, const AxisOptions& options = {}) const {
    return axis({name}, options);
  }
  const Axis& axis(std::initializer_list<std::string_view> names,
                   const AxisOptions& options = {}) const;
  /// All ranks, in order; on a channel of its own ("world"), so that a collective of the user's
  /// never comes between those of training, whose order may differ from rank to rank beside it.
  const Axis& world(const AxisOptions& options = {}) const;
  /// The same ranks on training's own channel: for what `tessera train` does between its steps.
  const Axis& all_of_training() const;

  /// The axes of more than one rank that were used so far, for summaries.
  std::vector<Axis> used_axes() const;

 private:
  DeviceMesh(const MeshShape& shape, const comm::Rendezvous& where,
             const comm::Transport& transport, c10::Device device,
             c10::intrusive_ptr<c10d::Store> store);
  Axis make(comm::GroupOptions group) const;

  MeshShape shape_;
  comm::Rendezvous where_;
  comm::Transport transport_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::Device device_;
  comm::GlooDevice sockets_;
  std::shared_ptr<comm::RollCall> roll_call_;  // null in a run of one rank
  mutable std::map<std::string, Axis> axes_;   // by name; destroyed before store and device
};

}  // namespace tessera::mesh
