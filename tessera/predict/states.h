// What a rank holds of parameters, gradients and optimizer state: ZeRO's formulas (Rajbhandari et
// al., SC 2020, section 5) on the flat buffers of its plan.
#pragma once

#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/plan/units.h"

namespace tessera::predict {

/// Bytes of one unit on the device.
struct UnitBytes {
  double parameters = 0;                     ///< slices, and copies of them
  double kept_whole = 0, passing_whole = 0;  ///< parameters beside the slices
  double arriving = 0;                       ///< of the latter, while they are gathered ahead
  double kept_gradients = 0, passing_gradients = 0;
  double gradient_slice = 0;      ///< where it is not part of the gradient
  bool slice_comes_last = false;  ///< it has no memory before the sum over ranks is there
  double gradient_on_drives = 0;  ///< of the slice: it goes there once that sum is taken
  double optimizer = 0;
  double on_drives = 0;            ///< beside all of these
  double slices_on_drives = 0;     ///< of that, what each gather reads
  double updated_on_drives = 0;    ///< what the update reads and writes
  double brought_from_drives = 0;  ///< of both, what it takes as gathers do
  double copied_to_drives = 0;     ///< of the slices, what it writes alone
  bool updated_here = false;       ///< by the device itself, through whose memory that comes
};
UnitBytes unit_bytes(const plan::UnitPlan& unit, const config::RunConfig& config);

/// Does its backward read its parameters? The gradient of a table needs the ids alone, but for an adapter
/// beside it.
bool backward_reads(const plan::UnitPlan& unit);

/// Bytes of the buffers through which the device brings what is on drives: no more than that is.
double buffers_for_drives(const std::vector<UnitBytes>& units, const config::RunConfig& config);

/// Bytes of a unit's gradients while the backward of the one before it goes on. `updating_ranks`:
/// those that reduce it, if it is updated once that is done; else 0.
double gradients_on_the_way(const UnitBytes& unit, int64_t updating_ranks);

/// Bytes on this rank, each at the most.
struct StateBytes {
  double parameters = 0, gathered = 0, gradients = 0, optimizer = 0;
  double on_drives = 0;  ///< beside all of these, all the time
};
StateBytes peak_of_states(const std::vector<UnitBytes>& units, const config::RunConfig& config,
                          const mesh::MeshShape& mesh);

}  // namespace tessera::predict
