// One unit of a data-parallel model: its buffers, and how they are gathered, reduced and freed.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/parallel/data/flat_buffer.h"
#include "tessera/parallel/data/fp8_sum.h"
#include "tessera/parallel/data/host_copies.h"
#include "tessera/parallel/data/options.h"

namespace tessera::parallel {

/// The ranks that share a buffer.
struct SharingAxes {
  mesh::Axis all;        ///< every one of them
  mesh::Axis replicate;  ///< ranks that hold the same slices
  mesh::Axis gather;     ///< ranks that hold different slices of one copy
  mesh::Axis reduce;     ///< the same ranks, on a thread of their own
};

/// The ranks among which data parallelism works; by themselves, those of what every data rank has.
struct DataAxes : SharingAxes {
  SharingAxes experts;                 ///< ranks that have the same experts
  mesh::Axis ep;                       ///< ranks that have other ones
  mesh::Axis inner;                    ///< `reshard_after_forward` to k: this rank's k neighbours
  mesh::Axis model;                    ///< the fewest ranks that hold all experts of these units
  bool first_copy = true;              ///< first in `model` that has all of what is not of experts
  mesh::Axis stages;                   ///< ranks that hold other units of the model
  torch::Device device = torch::kCPU;  ///< where parameters from the meta device come to lie

  const SharingAxes& of(const FlatBuffer& buffer) const {
    return buffer.options().of_experts ? experts : *this;
  }

  /// dp_replicate and dp_shard of a mesh (tp for `model`, too, and pp for `stages`), with channels
  /// for what shall not wait for each other. Those of experts are the same without ep.
  /// `inner_size`: k, or 0.
  static DataAxes of(const mesh::DeviceMesh& mesh, int inner_size = 0);
};

struct UnitTimes {
  double gather_wait_seconds = 0;  ///< the caller stood still for parameters
  double reduce_wait_seconds = 0;  ///< for gradients
};

/// Adds the seconds that it lives.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  ~Timed() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Parameters that are gathered and reduced together. Frozen ones lie in a buffer of their own:
/// they have neither gradient nor optimizer state, whatever they share a unit with.
///
/// Every method is collective in effect: all ranks call the same ones in the same order.
class Unit {
 public:
  using Named = FlatBuffer::Named;
  /// `copies`: for what lives on a device's host; null on a CPU.
  Unit(std::string name, const std::vector<Named>& parameters, const UnitOptions& options,
       const DataParallelOptions& all, const DataAxes& axes, std::shared_ptr<HostCopies> copies);

  const std::string& name() const { return name_; }
  /// Copies go on with those of the other units: `all`, or from now on its own.
  void share_copies(std::shared_ptr<HostCopies>& all);
  void move_below(const std::string& path);  ///< of its model in a larger one: names change
  const UnitOptions& options() const { return options_; }
  std::vector<FlatBuffer>& buffers() { return buffers_; }
  const std::vector<FlatBuffer>& buffers() const { return buffers_; }
  const UnitTimes& times() const { return times_; }
  bool sharded() const { return num_slices_ > 1; }  ///< is any of its buffers?
  bool sums_over_replicas() const;
  /// Ranks outside of the data axes hold summands of its gradients (FlatOptions::replication).
  bool sums_over_ranks_beside() const;
  /// Some of its whole parameters come for a forward or backward and go: with full_shard, or in 8 bits.
  bool frees_whole() const;
  bool sums_in_8_bits() const { return fp8_communication_; }

  // Parameters.
  bool has_whole() const { return state_ != State::sliced; }  ///< there, or on the way
  void start_gather();           ///< nothing if they are there or on the way
  void finish_gather();          ///< starts and waits as needed
  void finish_coming();          ///< from the host: its slices, and those of other units
  void reshard();                ///< frees the whole parameters, if it frees_whole()
  void reshard_after_forward();  ///< as the option says
  /// Slices have new values (those of frozen parameters: only if told so): what was gathered of them is out
  /// of date.
  void slices_changed(bool frozen_ones);
  /// The same, and so are views of it.
  void parameters_changed(bool frozen_ones);
  void keep_written();  ///< whole parameters have new values, between unshard and reshard
  /// ValueError, naming the parameter: what a user did since the sharding that would be lost.
  /// Cheap.
  void check_parameters() const;
  /// Were slices written of which nobody was told? Of those that lie `apart` from the whole parameters, or of all.
  /// Cheap, but the host waits for a GPU if there is a sample.
  bool slices_are_ahead(bool apart) const;
  void keep_samples(bool apart);  ///< FlatBuffer::keep_sample() of these
  /// The same for what was written to the whole parameters since the last forward. `reduced`:
  /// gradients are sums already, of which other ranks have other parts.
  void check_written(bool reduced);

  // Gradients of a step: begin, backward, start_reduce, finish_reduce, once per micro-batch or once
  // for all; then start_replicate and finish_replicate (sums over replicas, and over the ranks of
  // FlatOptions::replication); after the optimizer's step, forget.
  void begin_gradient();
  void fill_gradient();  ///< of what no backward added to
  void start_reduce();   ///< zeros if no backward reached the unit
  bool reducing() const { return reducing_; }
  bool reduced() const { return reduced_; }  ///< since begin_gradient
  bool reduce_done() const;                  ///< finish_reduce would not wait
  void finish_reduce(double divide_factor);
  void finish_leaving();  ///< to the host: its gradients, and those of the units reduced before
  void start_replicate();
  void finish_replicate();
  void finish_replicas();  ///< of it, the sums over replicas
  void forget_gradients();
  bool frees_gradient() const;  ///< whole gradients go once they are reduced

 private:
  enum class State { sliced, gathering, gathered };

  bool sums_over_replicas(const FlatBuffer& buffer) const;
  bool gathers() const;  ///< is there anything to do between slice and whole?
  void wait(std::vector<comm::Work>& works,
            double& seconds) const;  // DistError names the unit, too
  void finish_sum(size_t index, double factor);
  void set_sums_apart();

  std::string name_;
  UnitOptions options_;
  DataAxes axes_;
  int num_slices_ = 1;
  std::vector<FlatBuffer> buffers_;
  State state_ = State::sliced;
  std::vector<comm::Work> gathers_, reduces_, replicates_;
  std::shared_ptr<HostCopies> copies_;
  std::vector<torch::Tensor> inner_parts_;      // per buffer, while resharded to the inner axis
  std::vector<torch::Tensor> earlier_;          // per buffer: sums of this step's earlier backwards
  std::vector<torch::Tensor> replicated_sums_;  // per buffer: likewise, over replicas, too
  std::vector<char> straight_;                  // per buffer: the sum under way goes to the slice
  bool fp8_communication_ = false;
  std::vector<std::optional<Fp8Sum>> fp8_sums_;  // per buffer: under way
  /// Per buffer, under way: a gradient kept in 8 bits, as numbers, that is summed over replicas.
  std::vector<torch::Tensor> replica_numbers_;
  bool reducing_ = false, reduced_ = false, replicated_ = false;
  bool adds_in_place_ = false;  // the next backward of a rank alone, to what this one left
  UnitTimes times_;
};

}  // namespace tessera::parallel
