// What a rank holds of parameters, gradients and optimizer state: ZeRO's formulas (Rajbhandari et
// al., SC 2020, section 5) on the flat buffers of its plan.
#pragma once

#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/plan/units.h"

namespace tessera::predict {

/// What of one kind is on drives in pieces.
struct Pieces {
  int64_t count = 0;
  double bytes = 0, largest = 0;

  void add(double piece);
  void add(const Pieces& others);
};

/// Bytes of one unit on the device.
struct UnitBytes {
  double parameters = 0;                     ///< slices, and copies of them
  double kept_whole = 0, passing_whole = 0;  ///< parameters beside the slices
  double arriving = 0;                       ///< of the latter, while they are gathered ahead
  double casting = 0;  ///< beside that for a moment: what comes from the host in another type
  double kept_gradients = 0, passing_gradients = 0;
  double gradient_slice = 0;      ///< where it is not part of the gradient
  bool slice_comes_last = false;  ///< it has no memory before the sum over ranks is there
  double leaving = 0;             ///< of the gradient, on its way to the host
  double optimizer = 0;
  double on_drives = 0;            ///< beside all of these
  Pieces slices;                   ///< of that, what each gather reads
  Pieces gradients;                ///< of slices: they go there once the sum over ranks is taken
  Pieces states;                   ///< what an update takes part by part
  double updated_on_drives = 0;    ///< what the update reads and writes
  double brought_from_drives = 0;  ///< of both, what it takes as gathers do
  double copied_to_drives = 0;     ///< of the slices, what it writes alone
  bool updated_here = false;       ///< by the device itself, through whose memory that comes
};
UnitBytes unit_bytes(const plan::UnitPlan& unit, const config::RunConfig& config);

/// Does its backward read its parameters? The gradient of a table needs the ids alone, but for an adapter
/// beside it.
bool backward_reads(const plan::UnitPlan& unit);

/// Memory through which a rank brings what is on drives, in bytes.
struct DriveBuffers {
  double slices = 0, gradients = 0, states = 0;
  int64_t parts = 0;  ///< of states

  double bytes() const { return slices + gradients + states; }
};
/// Does the device bring it itself, so that they are its memory?
bool updated_here(const std::vector<UnitBytes>& units);
DriveBuffers buffers_for_drives(const std::vector<UnitBytes>& units,
                                const config::RunConfig& config);

/// Bytes in which muon updates the matrices of a unit (parallel/data/matrices.cpp), beside all of UnitBytes.
/// `of_matrix`: those in which it makes the largest one orthogonal (optim/muon.cpp).
double bytes_of_muon(const plan::UnitPlan& unit, double of_matrix);

/// One buffer is cast at a time, in memory that is kept for the next one.
double largest_cast(const std::vector<UnitBytes>& units);

/// Bytes of a unit's gradients while the backward of the one before it goes on. `ranks_of_leaving`:
/// those that reduce it, if it is updated once that is done, or goes to drives; else 0.
double gradients_on_the_way(const UnitBytes& unit, int64_t ranks_of_leaving);

/// Bytes on this rank, each at the most.
struct StateBytes {
  double parameters = 0, gathered = 0, gradients = 0, optimizer = 0;
  double on_drives = 0;  ///< beside all of these, all the time
};
StateBytes peak_of_states(const std::vector<UnitBytes>& units, const config::RunConfig& config,
                          const mesh::MeshShape& mesh);

}  // namespace tessera::predict
